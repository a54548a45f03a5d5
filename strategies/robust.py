"""Robust aggregates: what to make of a round in which some updates may be anything.

All but the geometric median discard the weights: robust to outliers means blind to contribution.
A client that sends zeros is close to everybody, and Krum likes it best.
"""

from collections.abc import Callable, Mapping

import numpy as np

from strategies.aggregate import Aggregate, weighted_sum
from strategies.geometry import around, deviation_products, squared_distances
from strategies.round import Round, Vector

BAD_SHARE = 0.2  # of the clients, rounded down, that a round is taken to survive
WEISZFELD_TOLERANCE = 1e-9  # no client's part in the median changes by more of itself: it is found
WEISZFELD_STEPS = 1000
CLOSEST = 1e-6  # distances below this part of the typical one count as that


def median(round_: Round, weights: Vector) -> Mapping[str, Vector]:
    """The median of each coordinate; of an even number of clients the mean of the middle two."""
    return _each_coordinate(round_, lambda stack: np.median(stack, axis=0))


def trimmed_mean(share: float = BAD_SHARE) -> Aggregate:
    """The mean of each coordinate without its ``int(share * m)`` largest and as many smallest values."""

    def mean(stack: Vector) -> Vector:
        cut = int(share * len(stack))
        kept: Vector = np.sort(stack, axis=0)[cut : len(stack) - cut].mean(axis=0)
        return kept

    return lambda round_, weights: _each_coordinate(round_, mean)


def krum(share: float = BAD_SHARE) -> Aggregate:
    """The one update with the smallest sum of squared distances to its nearest ``m - f - 2`` (at least 1).

    f is ``int(share * m)``. Among equals the first by name.
    """

    def aggregate(round_: Round, weights: Vector) -> Mapping[str, Vector]:
        return _mean_of(round_, _by_krum(round_, share)[:1])

    return aggregate


def multi_krum(share: float = BAD_SHARE) -> Aggregate:
    """The plain mean of the ``m - f`` updates that Krum likes best."""

    def aggregate(round_: Round, weights: Vector) -> Mapping[str, Vector]:
        order = _by_krum(round_, share)
        return _mean_of(round_, order[: len(order) - int(share * len(order))])

    return aggregate


def geometric_median(round_: Round, weights: Vector) -> Mapping[str, Vector]:
    """The point with the smallest weighted sum of distances to the updates (RFA), over the whole model.

    By Weiszfeld's iteration from the weighted mean, until no client's part in the point changes by 1e-9
    or for 1000 steps. Distances below 1e-6 of the longest count as that, so an update that is the median
    itself is met only to about that part of the spread.
    """
    products = deviation_products(round_)
    parts = weights
    for _ in range(WEISZFELD_STEPS):
        distances = np.sqrt(np.diag(around(parts, products)).clip(min=0.0))
        typical = _weighted_median(distances, weights)
        if typical == 0:  # half of the weight lies at the point: it is the median
            break
        pulls = weights / np.maximum(distances, CLOSEST * typical)
        before, parts = parts, pulls / pulls.sum()
        if (np.abs(parts - before) <= WEISZFELD_TOLERANCE * before).all():
            break
    return weighted_sum(round_, parts)


AGGREGATES: dict[str, Aggregate] = {
    "mean": weighted_sum,
    "median": median,
    "trimmed-mean": trimmed_mean(),
    "krum": krum(),
    "multi-krum": multi_krum(),
    "geometric-median": geometric_median,
}


def _weighted_median(values: Vector, weights: Vector) -> float:
    """The smallest value that half of the weight does not exceed."""
    order = np.argsort(values, kind="stable")
    half = np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)
    return float(values[order[min(int(half), len(order) - 1)]])


def _each_coordinate(round_: Round, combine: Callable[[Vector], Vector]) -> Mapping[str, Vector]:
    return {
        name: combine(np.stack([np.asarray(r.update[name], dtype=np.float64) for r in round_.replies]))
        for name in round_.model
    }


def _by_krum(round_: Round, share: float) -> list[int]:
    """The replies' positions, best first."""
    size = len(round_.replies)
    near = max(size - int(share * size) - 2, 1)
    distances = squared_distances(deviation_products(round_))
    # The first of each sorted row is the update's distance to itself.
    scores = np.sort(distances, axis=1)[:, 1 : near + 1].sum(axis=1)
    return [int(i) for i in np.argsort(scores, kind="stable")]


def _mean_of(round_: Round, chosen: list[int]) -> Mapping[str, Vector]:
    parts = np.zeros(len(round_.replies))
    parts[chosen] = 1.0 / len(chosen)
    return weighted_sum(round_, parts)
