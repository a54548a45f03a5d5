"""Exact Shapley values: the ground truth that cheap scores are compared with."""

from collections.abc import Callable
from itertools import combinations
from math import comb

import numpy as np

from strategies.round import Vector

MAX_PLAYERS = 8  # 2^8 coalitions, each of which may cost a training run


def shapley(players: int, value: Callable[[frozenset[int]], float]) -> Vector:
    """Shapley values of players 0 to n - 1 under a value of coalitions, (n,).

    Each coalition, the empty one too, is valued once. The values sum to v(all) - v(none). Raises
    ValueError for fewer than 1 or more than 8 players.
    """
    if not 1 <= players <= MAX_PLAYERS:
        raise ValueError(f"exact Shapley values take 1 to {MAX_PLAYERS} players; got {players}")
    everybody = range(players)
    worth = {
        frozenset(group): value(frozenset(group))
        for size in range(players + 1)
        for group in combinations(everybody, size)
    }
    result = np.zeros(players)
    for group, without in worth.items():
        for player in set(everybody) - group:
            gain = worth[group | {player}] - without
            result[player] += gain / (players * comb(players - 1, len(group)))
    return result
