"""Weightings: scores -> weights on the simplex, (m,) -> (m,): not negative, finite, sum 1."""

from collections.abc import Callable

import numpy as np

from strategies.round import Round, Vector

Weigh = Callable[[Vector, Round], Vector]


def shares(scores: Vector) -> Vector | None:
    """Scores divided by their sum; None if they have no positive finite sum or one is negative."""
    total = scores.sum()
    if not np.isfinite(total) or total <= 0 or (scores < 0).any():
        return None
    parts: Vector = scores / total
    return parts


def proportional(scores: Vector, round_: Round) -> Vector:
    """Weights in proportion to the scores; equal ones if the scores cannot be shares."""
    parts = shares(scores)
    return uniform(scores, round_) if parts is None else parts


def proportional_or_examples(scores: Vector, round_: Round) -> Vector:
    """Weights in proportion to the scores; to the example counts if the scores cannot be shares."""
    parts = shares(scores)
    return by_examples(scores, round_) if parts is None else parts


def uniform(scores: Vector, round_: Round) -> Vector:
    """Equal weights: the average over participants that most papers of the field state."""
    return np.full(len(round_.replies), 1.0 / len(round_.replies))


def by_examples(scores: Vector, round_: Round) -> Vector:
    """Weights in proportion to the examples that the clients say they have (FedAvg)."""
    weights: Vector = round_.examples / round_.examples.sum()
    return weights


BASE: dict[str, Weigh] = {"uniform": uniform, "examples": by_examples}
