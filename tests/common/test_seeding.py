"""Named random streams: repeatable, apart from each other, and without global state."""

import hashlib
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.seeding import permutation, stream, subset, torch_seed, uniforms

REPO = Path(__file__).parents[2]
PERMUTATION = [3, 1, 5, 0, 4, 7, 6, 2]
UNIFORMS = [0.3517189202513139, 0.3105882770190179, 0.8168213829111891]
NAMES = st.tuples(
    st.integers(0, 2**63 - 1),
    st.text(max_size=3),
    st.lists(st.integers(0, 99) | st.text("0129,\"'[", max_size=3)),
)


def test_the_numbers_follow_from_a_hash_of_the_name() -> None:
    digest = hashlib.sha256(b'[7, "batches", 3, "site-1"]').digest()
    assert torch_seed(7, "batches", 3, "site-1") == int.from_bytes(digest[:8], "big") // 2
    expected = np.random.default_rng(int.from_bytes(digest, "big")).integers(0, 1000, 5)
    assert stream(7, "batches", 3, "site-1").integers(0, 1000, 5).tolist() == expected.tolist()


def test_close_names_are_different_streams() -> None:
    names = [
        (0, "a"),
        (1, "a"),
        (0, "b"),
        (0, "a", 1),
        (0, "a", "1"),
        (0, "a1"),
        (0, "a", 1, 2),
        (0, "a", 12),
        (0, ""),
    ]
    for one, other in combinations(names, 2):
        assert torch_seed(*one) != torch_seed(*other)
        assert stream(*one).random() != stream(*other).random()


@given(NAMES, NAMES)
def test_two_names_share_numbers_only_if_they_are_equal(one, other) -> None:
    seeds = [torch_seed(seed, purpose, *keys) for seed, purpose, keys in (one, other)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert (seeds[0] == seeds[1]) == (one == other)


def test_no_stream_moves_another_or_the_global_one() -> None:
    alone = stream(0, "second").random(4)
    before = np.random.get_state()[1].tolist()
    first = stream(0, "first")
    first.random(100)
    assert stream(0, "second").random(4).tolist() == alone.tolist()
    assert np.random.get_state()[1].tolist() == before


def test_numpy_integers_count_as_integers_and_other_numbers_are_refused() -> None:
    assert torch_seed(np.int64(3), "a", np.int32(4)) == torch_seed(3, "a", 4)
    with pytest.raises(TypeError):
        torch_seed(0, "a", 1.0)


def test_another_process_draws_the_same_without_torch() -> None:
    code = (
        "import sys; from common.seeding import stream; "
        "print(stream(5, 'x', 1).random(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(stream(5, "x", 1).random()), "False"]


def test_what_all_nodes_draw_alike_hangs_on_raw_words_alone() -> None:
    """Noted down once; another NumPy must draw the same."""
    assert permutation(stream(0, "test"), 8).tolist() == PERMUTATION
    assert subset(stream(0, "test"), 3, 8).tolist() == sorted(PERMUTATION[:3])
    assert uniforms(stream(0, "test"), 3).tolist() == UNIFORMS


@given(size=st.integers(1, 50), more=st.integers(0, 50), seed=st.integers(0, 9))
def test_a_subset_is_the_start_of_a_permutation_sorted(size: int, more: int, seed: int) -> None:
    count = size + more
    drawn = permutation(stream(seed, "a"), count)
    assert sorted(drawn.tolist()) == list(range(count))
    assert subset(stream(seed, "a"), size, count).tolist() == sorted(drawn[:size].tolist())


def test_uniforms_fill_what_lies_between_0_and_1() -> None:
    drawn = uniforms(stream(0, "many"), 20_000)
    assert 0 < drawn.min() < 1e-3 and 1 - 1e-3 < drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.01 and abs(drawn.var() - 1 / 12) < 0.003


def test_no_word_is_0_or_1() -> None:
    words = np.array([0, 2**64 - 1], dtype=np.uint64)
    ends = SimpleNamespace(bit_generator=SimpleNamespace(random_raw=lambda count: words))
    assert uniforms(ends, 2).tolist() == [2.0**-53, 1 - 2.0**-53]  # type: ignore[arg-type]
