"""Aggregation: weights -> one update, one set of buffers.

Sums run over the clients in the order of their names and in float64, so that neither the order of
arrival nor the number of clients costs a bit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.params import Arrays
from strategies.round import Round, Vector

BLOCK = 32_768  # numbers in a quarter of a megabyte

Aggregate = Callable[[Round, Vector], Mapping[str, Vector]]
MergeBuffers = Callable[[Round, Vector], Arrays]


def weighted_sum(round_: Round, weights: Vector) -> Mapping[str, Vector]:
    """``sum_i c_i D_i`` in float64, each tensor when it is asked for."""
    return WeightedSum([reply.update for reply in round_.replies], weights)


def merged_buffers(round_: Round, weights: Vector) -> Arrays:
    """Buffers of the next model: floats by the same weights, integers (counters) by their maximum."""
    means = WeightedSum([reply.buffers for reply in round_.replies], weights)
    return {
        name: means[name].astype(x.dtype)
        if x.dtype.kind == "f"
        else np.maximum.reduce([reply.buffers[name] for reply in round_.replies])
        for name, x in round_.replies[0].buffers.items()
    }


def median_buffers(round_: Round, weights: Vector) -> Arrays:
    """Buffers of the next model where no single client shall have its way: the median of each number.

    Of an even number of counters it is the upper one of the two in the middle.
    """
    stacks = {
        name: np.sort(np.stack([reply.buffers[name] for reply in round_.replies]), axis=0)
        for name in round_.replies[0].buffers
    }
    upper = len(round_.replies) // 2
    return {
        name: np.median(x.astype(np.float64), axis=0).astype(x.dtype) if x.dtype.kind == "f" else x[upper]
        for name, x in stacks.items()
    }


@dataclass(frozen=True)
class WeightedSum(Mapping[str, Vector]):
    """Named weighted sums, made anew each time one is asked for: no whole model in float64 is ever there."""

    arrays: Sequence[Arrays]
    weights: Vector

    def __getitem__(self, name: str) -> Vector:
        return _weighted([one[name] for one in self.arrays], self.weights)

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays[0])

    def __len__(self) -> int:
        return len(self.arrays[0])


def _weighted(arrays: Sequence[NDArray[np.generic]], weights: Vector) -> Vector:
    """``sum_i w_i x_i`` in float64, in order. Block by block, so that partial sums stay in the cache."""
    flat = [x.reshape(-1) for x in arrays]
    total = np.zeros(flat[0].size, dtype=np.float64)
    product = np.empty(min(BLOCK, total.size), dtype=np.float64)
    for start in range(0, total.size, BLOCK):
        part = total[start : start + BLOCK]
        for weight, x in zip(weights.tolist(), flat, strict=True):
            scaled = product[: part.size]
            scaled[:] = x[start : start + BLOCK]  # at once, where a product of two types goes by small pieces
            scaled *= weight
            part += scaled
    return total.reshape(arrays[0].shape)
