"""Simulated shares: every row once, repeatable, and as uneven as asked for."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigError, DataError
from common.partition import KINDS, free_rider, parse_part, split

LABELS = np.repeat(np.arange(10), 100)


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60).map(np.array),
    st.sampled_from(KINDS),
    st.integers(1, 6),
    st.sampled_from([0.05, 0.5, 5, 1000.0]),
    st.integers(0, 2**63 - 1),
)
def test_every_row_belongs_to_exactly_one_node(labels, kind, nodes, alpha, seed) -> None:
    try:
        parts = split(labels, kind, nodes, alpha, seed)
    except DataError:  # only where there is too little to divide
        assert nodes > len(labels) or (kind != "iid" and nodes > 1)
        return
    assert len(parts) == nodes
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert all(len(part) > 0 and part.tolist() == sorted(part.tolist()) for part in parts)
    assert all(part.dtype == np.int64 for part in parts)


def test_iid_shares_are_equal_in_size_and_mixed() -> None:
    parts = split(LABELS, "iid", 3, 1.0, 0)
    assert sorted(map(len, parts)) == [333, 333, 334]
    for part in parts:
        # 33 of each class on average, and a standard deviation under 5: far from sorted blocks.
        assert np.bincount(LABELS[part], minlength=10) == pytest.approx(np.full(10, 33.3), abs=20)


def test_a_smaller_alpha_divides_classes_less_evenly() -> None:
    def unevenness(alpha: float) -> float:
        counts = [np.bincount(LABELS[part], minlength=10) for part in split(LABELS, "dirichlet", 4, alpha, 1)]
        return float(np.std(counts))

    # Expected standard deviations of 100 * Dirichlet(alpha) over 4 nodes: 100 * sqrt(3/16 / (4 alpha + 1)).
    assert unevenness(0.1) == pytest.approx(36.6, rel=0.25)
    assert unevenness(1.0) == pytest.approx(19.4, rel=0.25)
    assert unevenness(1000.0) < 2
    assert min(map(len, split(LABELS, "dirichlet", 4, 0.1, 1))) >= 10


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind: str) -> None:
    def told(seed: int) -> list[list[int]]:
        return [part.tolist() for part in split(LABELS, kind, 3, 0.5, seed)]

    assert told(1) == told(1)
    assert told(1) != told(2)


def test_the_split_is_the_same_everywhere_and_silent(capfd: pytest.CaptureFixture[str]) -> None:
    # Several draws are needed here until every node has ten rows; the sizes were noted down once.
    assert [len(part) for part in split(LABELS, "dirichlet", 8, 0.05, 4)] == [
        19,
        73,
        99,
        188,
        23,
        252,
        139,
        207,
    ]
    assert [len(part) for part in split(LABELS, "dirichlet", 3, 0.5, 4)] == [237, 380, 383]
    assert [part[:4].tolist() for part in split(LABELS, "iid", 2, 0.5, 4)] == [[0, 1, 2, 6], [3, 4, 5, 7]]
    assert capfd.readouterr() == ("", "")


def test_shards_give_like_sizes_and_few_classes() -> None:
    parts = split(LABELS, "shards", 5, 1.0, 3)
    assert [len(part) for part in parts] == [200] * 5
    assert all(len(set(LABELS[part])) <= 2 for part in parts)
    # 997 rows in 14 shards of 71 or 72.
    assert {len(part) for part in split(LABELS[:997], "shards", 7, 1.0, 3)} <= {142, 143, 144}


def test_only_label_skew_gives_one_size_and_more_classes_to_later_nodes() -> None:
    parts = split(LABELS, "only-label-skew", 5, 1.0, 3)
    assert [len(part) for part in parts] == [200] * 5
    counts = [np.bincount(LABELS[part], minlength=10) for part in parts]
    # The first takes two classes whole, the second half of four others, the third a third of six, of which four
    # are new ones. No row of the first node's classes is left for anybody.
    assert sorted(counts[0].tolist()) == [0] * 8 + [100] * 2
    assert sorted(counts[1].tolist()) == [0] * 6 + [50] * 4
    assert sorted(counts[2].tolist()) == [0] * 4 + [33] * 4 + [34] * 2
    # Of the fourth's eight two have 17 left; the last gets the rest of six.
    assert [(count > 0).sum() for count in counts] == [2, 4, 6, 8, 6]
    assert sorted(counts[3].tolist())[:4] == [0, 0, 17, 17]


def test_only_label_skew_takes_more_classes_where_those_do_not_suffice() -> None:
    labels = np.repeat(np.arange(5), [2, 2, 2, 2, 32])
    parts = split(labels, "only-label-skew", 2, 1.0, 0)
    assert [len(part) for part in parts] == [20, 20]
    assert sorted(np.concatenate(parts).tolist()) == list(range(40))


def test_step_quantity_skew_grows_with_classes_mixed() -> None:
    parts = split(LABELS, "step-quantity-skew", 4, 1.0, 3)
    assert [len(part) for part in parts] == [100, 200, 300, 400]
    counts = np.array([np.bincount(LABELS[part], minlength=10) for part in parts])
    assert counts[3] == pytest.approx(np.full(10, 40), abs=16)  # a standard deviation of 4.6


def test_step_label_skew_grows_in_classes_and_rows() -> None:
    parts = split(LABELS, "step-label-skew", 5, 1.0, 3)
    # Of 10 classes node i has 2 i. Two of them are shared by 5 nodes, the next two by 4, and so on.
    assert [len(set(LABELS[part])) for part in parts] == [2, 4, 6, 8, 10]
    shares = [200 / 5, 200 / 4, 200 / 3, 200 / 2, 200]
    assert [len(part) for part in parts] == pytest.approx(np.cumsum(shares), abs=4)
    for small, large in pairwise(parts):
        assert set(LABELS[small]) < set(LABELS[large]) and len(small) < len(large)


def test_more_nodes_than_classes_have_them_in_steps() -> None:
    parts = split(LABELS % 3, "step-label-skew", 7, 1.0, 0)
    assert [len(set(LABELS[part] % 3)) for part in parts] == [1, 1, 2, 2, 3, 3, 3]


def test_one_node_has_everything() -> None:
    for kind in KINDS:
        (part,) = split(LABELS, kind, 1, 0.5, 0)
        assert part.tolist() == list(range(1000))


@pytest.mark.parametrize(
    ("rows", "kind", "nodes", "alpha", "sentence"),
    [
        (
            9,
            "dirichlt",
            2,
            1.0,
            f'unknown partition "dirichlt"; takes {", ".join(KINDS)}. Did you mean "dirichlet"?',
        ),
        (3, "iid", 4, 1.0, "3 rows can be split over 1 to 3 nodes; got 4"),
        (3, "dirichlet", 0, 1.0, "3 rows can be split over 1 to 3 nodes; got 0"),
        (9, "dirichlet", 2, 0.0, "alpha of a partition must be positive and finite; got 0.0"),
        (9, "dirichlet", 2, float("nan"), "alpha of a partition must be positive and finite; got nan"),
        (9, "dirichlet", 2, float("inf"), "alpha of a partition must be positive and finite; got inf"),
        (
            50,
            "dirichlet",
            50,
            0.01,
            "a dirichlet partition with alpha 0.01 of 50 rows left one of 50 nodes with too few rows "
            "in every draw; take a larger alpha or fewer nodes",
        ),
        (
            8,
            "step-quantity-skew",
            7,
            1.0,
            "a step-quantity-skew partition of 8 rows left one of 7 nodes with none; take fewer nodes",
        ),
        (
            8,
            "step-label-skew",
            7,
            1.0,
            "a step-label-skew partition of 8 rows left one of 7 nodes with none; take fewer nodes",
        ),
    ],
)
def test_splits_that_cannot_be(rows: int, kind: str, nodes: int, alpha: float, sentence: str) -> None:
    kinds = ("unknown", "alpha of")  # what is said of an option, not of data
    with pytest.raises(ConfigError if sentence.startswith(kinds) else DataError) as caught:
        split(np.arange(rows) % 3, kind, nodes, alpha, 0)
    assert str(caught.value) == sentence


def test_a_free_rider_repeats_few_rows_of_its_share() -> None:
    share = np.arange(100, 200)
    rows = free_rider(share, 35, 10, seed=0)
    assert len(rows) == 35
    assert set(rows.tolist()) <= set(share.tolist())
    assert rows.tolist() == (rows[:10].tolist() * 4)[:35]
    assert rows.tolist() == free_rider(share, 35, 10, seed=0).tolist()
    assert rows.tolist() != free_rider(share, 35, 10, seed=1).tolist()


def test_a_free_riders_rows_are_drawn_with_replacement() -> None:
    # Ten draws from three rows must repeat one; without replacement they could not be drawn at all.
    assert len(set(free_rider(np.arange(3), 10, 10, seed=0).tolist())) <= 3
    # Ten of a hundred repeat one with probability 1 - 100!/(90! 100^10) = 0.37, so it happens in 30 seeds.
    assert any(len(set(free_rider(np.arange(100), 10, 10, seed).tolist())) < 10 for seed in range(30))


@pytest.mark.parametrize(("rows", "samples"), [(0, 10), (5, 0)])
def test_a_free_rider_needs_a_row(rows: int, samples: int) -> None:
    with pytest.raises(ValueError, match="at least one row"):
        free_rider(np.arange(rows), 10, samples, 0)


@pytest.mark.parametrize(
    ("text", "part"), [("1/1", (0, 1)), ("1/3", (0, 3)), ("3/3", (2, 3)), ("07/10", (6, 10))]
)
def test_parts(text: str, part: tuple[int, int]) -> None:
    assert parse_part(text) == part


@pytest.mark.parametrize(
    "text", ["", "1", "0/3", "4/3", "1/0", "-1/3", "1/3/5", "a/b", "1 / 3", "1.0/3", "1/3\n", "٣/٣"]
)
def test_texts_that_name_no_part(text: str) -> None:
    with pytest.raises(ConfigError, match=r'^a part is written like "1/3", from 1/3 to 3/3; got "'):
        parse_part(text)
