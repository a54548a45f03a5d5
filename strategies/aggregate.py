"""Aggregation: weights -> one update, one set of buffers.

Sums run over the clients in the order of their names and in float64, so that neither the order of
arrival nor the number of clients costs a bit.
"""

from collections.abc import Callable, Sequence

import numpy as np

from common.params import Arrays
from strategies.round import Round, Vector

Aggregate = Callable[[Round, Vector], dict[str, Vector]]


def weighted_sum(round_: Round, weights: Vector) -> dict[str, Vector]:
    """``sum_i c_i D_i`` in float64."""
    return _weighted([reply.update for reply in round_.replies], weights)


def merged_buffers(round_: Round, weights: Vector) -> Arrays:
    """Buffers of the next model: floats by the same weights, integers (counters) by their maximum."""
    names = round_.replies[0].buffers
    first = round_.replies[0].buffers
    floats = [n for n in names if first[n].dtype.kind == "f"]
    means = _weighted([{n: r.buffers[n] for n in floats} for r in round_.replies], weights)
    return {
        n: means[n].astype(first[n].dtype)
        if n in means
        else np.maximum.reduce([r.buffers[n] for r in round_.replies])
        for n in names
    }


def _weighted(arrays: Sequence[Arrays], weights: Vector) -> dict[str, Vector]:
    total = {}
    for name, first in arrays[0].items():
        out = np.zeros(first.shape, dtype=np.float64)
        for weight, one in zip(weights.tolist(), arrays, strict=True):
            out += weight * np.asarray(one[name], dtype=np.float64)
        total[name] = out
    return total
