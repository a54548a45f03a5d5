"""Exact Shapley values: a game by hand, the axioms, and the slow definition over orders."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.signals.exact import shapley


def test_the_glove_game() -> None:
    # Players 0 and 1 own a left glove each, player 2 the right one; a pair is worth 1.
    assert shapley(3, lambda group: float(2 in group and len(group) > 1)) == pytest.approx(
        [1 / 6, 1 / 6, 2 / 3]
    )


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_it_is_the_mean_gain_over_all_orders(players: int, seed: int) -> None:
    worth = np.random.default_rng(seed).normal(size=2**players)

    def value(group: frozenset[int]) -> float:
        return float(worth[sum(1 << p for p in group)])

    gains = np.zeros(players)
    orders = list(permutations(range(players)))
    for order in orders:
        for i, player in enumerate(order):
            gains[player] += value(frozenset(order[: i + 1])) - value(frozenset(order[:i]))
    result = shapley(players, value)
    assert result == pytest.approx(gains / len(orders))
    assert result.sum() == pytest.approx(worth[-1] - worth[0])


def test_each_coalition_is_valued_once() -> None:
    asked: list[frozenset[int]] = []
    shapley(4, lambda group: asked.append(group) or 0.0)  # type: ignore[func-returns-value]
    assert len(asked) == len(set(asked)) == 16


@pytest.mark.parametrize("players", [0, 9])
def test_too_many_players_are_refused(players: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 8 players; got {players}"):
        shapley(players, lambda group: 0.0)
