"""Robust aggregates: by hand, against outliers, and the geometric median against a slow search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from strategies.robust import AGGREGATES, geometric_median, krum, median, multi_krum, trimmed_mean
from strategies.round import Round
from tests.strategies.rounds import whole_round


def points(*rows: tuple[float, ...]) -> Round:
    """One client a row: its first number is a weight of its own, the others a bias."""
    return whole_round(
        {f"c{i}": {"w": np.array([[row[0]]]), "b": np.array(row[1:])} for i, row in enumerate(rows)}
    )


def flat(update: dict[str, np.ndarray]) -> list[float]:
    return [*update["w"].ravel(), *update["b"]]


def equal(round_: Round) -> np.ndarray:
    return np.full(len(round_.replies), 1 / len(round_.replies))


FIVE = points((0, 10), (1, 11), (2, 12), (3, 13), (1000, -1000))


def test_median_of_each_coordinate() -> None:
    assert flat(median(FIVE, equal(FIVE))) == [2, 11]
    four = points((1, 0), (2, 0), (4, 0), (9, 0))
    assert flat(median(four, equal(four))) == [3, 0]


def test_trimmed_mean_leaves_out_one_of_five_on_either_side() -> None:
    assert flat(trimmed_mean()(FIVE, equal(FIVE))) == [2, 11]
    four = points((1, 0), (2, 0), (4, 0), (9, 0))  # int(0.2 * 4) is none
    assert flat(trimmed_mean()(four, equal(four))) == [4, 0]


def test_krum_takes_the_one_whose_neighbours_are_nearest() -> None:
    # f = 1 leaves two neighbours. To them squared distances are 5, 2, 5, 17 and 26; with a third one c2
    # would win.
    line = points((0, 0), (1, 0), (2, 0), (6, 0), (7, 0))
    assert flat(krum()(line, equal(line))) == [1, 0]


def test_among_equals_krum_takes_the_first_by_name() -> None:
    line = points((0, 0), (1, 0), (2, 0), (3, 0), (1000, 0))  # 5, 2, 2, 5
    assert flat(krum()(line, equal(line))) == [1, 0]


def test_multi_krum_is_the_mean_of_all_but_f() -> None:
    line = points((0, 0), (1, 0), (2, 0), (3, 0), (1000, 0))
    assert flat(multi_krum()(line, equal(line))) == [1.5, 0]


def test_krum_is_not_fooled_by_a_large_common_part() -> None:
    line = points(*[(1e9 + x, 0) for x in (1000, 3, 0, 1, 2)])
    assert flat(krum()(line, equal(line))) == [1e9 + 1, 0]


@given(st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_the_geometric_median_is_the_minimum_that_a_search_finds(clients: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    x, weights = draw.normal(size=(clients, 3)), draw.dirichlet(np.ones(clients))

    def cost(at: np.ndarray) -> float:
        return float(weights @ np.linalg.norm(x - at, axis=1))

    found = np.array(flat(geometric_median(points(*map(tuple, x)), weights)))
    best = minimize(
        cost, x.mean(axis=0), method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-12, "maxiter": 4000}
    )
    assert cost(found) <= best.fun + 1e-5


def test_a_minority_far_away_hardly_moves_the_geometric_median() -> None:
    far = points((0, 0), (1, 0), (0, 1), (1, 1), (1e6, 1e6))
    assert np.abs(flat(geometric_median(far, equal(far)))).max() < 2


def test_the_weights_turn_the_geometric_median() -> None:
    three = points((0, 0), (1, 0), (0, 1))
    assert flat(geometric_median(three, np.array([0.1, 0.8, 0.1]))) == pytest.approx([1, 0], abs=1e-5)


@pytest.mark.parametrize("name", AGGREGATES)
@pytest.mark.parametrize("clients", [1, 2, 3])
def test_few_or_equal_clients_give_what_they_sent(name: str, clients: int) -> None:
    same = points(*[(0.1, 0.7)] * clients)
    assert flat(AGGREGATES[name](same, equal(same))) == pytest.approx([0.1, 0.7])
    zero = points(*[(0, 0)] * clients)
    assert flat(AGGREGATES[name](zero, equal(zero))) == [0, 0]


def with_outliers(size: float) -> tuple[Round, np.ndarray]:
    """Eight updates close together, one apart, and one of this size; all of them by client, (10, 6)."""
    draw = np.random.default_rng(0)
    close = draw.normal(size=6) + 0.1 * draw.normal(size=(8, 6))
    rows = np.vstack([close, 100 * draw.normal(size=6), size * draw.normal(size=6)])
    return points(*map(tuple, rows)), rows


@pytest.mark.parametrize("size", [1e3, 1e9, 1e15, 1e30])
def test_one_huge_update_costs_the_others_no_digit(size: float) -> None:
    """Beside it all others are alike, and whoever stands apart would be one of them."""
    round_, rows = with_outliers(size)
    distances = np.square(rows[:, None] - rows[None]).sum(axis=2)
    sums = np.sort(distances, axis=1)[:, 1:7].sum(axis=1)  # f = 2 leaves six neighbours
    order = np.argsort(sums, kind="stable")
    assert flat(krum()(round_, equal(round_))) == pytest.approx(rows[order[0]].tolist())
    assert flat(multi_krum()(round_, equal(round_))) == pytest.approx(rows[order[:8]].mean(axis=0).tolist())
    centre = np.array(flat(geometric_median(round_, equal(round_))))
    assert np.linalg.norm(centre - rows[:8].mean(axis=0)) < 0.3  # two of ten pull it by less than that


def test_where_half_of_the_weight_lies_is_the_geometric_median() -> None:
    round_ = points((1, 2), (1, 2), (1, 2), (1e9, 0), (0, -1e20))
    assert flat(geometric_median(round_, equal(round_))) == [1, 2]
