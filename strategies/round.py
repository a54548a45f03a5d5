"""One round's admitted replies: what signals, scorers and weightings read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from common.models import Head
from common.params import Arrays

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Reply:
    """What one client sent, checked."""

    client: str  # its stable name
    update: Arrays  # trained minus received parameters
    buffers: Arrays
    examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)  # what it said of itself, for the ledger
    label_counts: tuple[int, ...] | None = None  # its training rows of each class, if the run asks for them


@dataclass(frozen=True)
class Round:
    """One round, its replies in the order of the clients' names: arrival order changes nothing."""

    number: int
    model: Arrays  # the server's parameters, which nodes received unless the recipe sends others
    head: Head
    replies: tuple[Reply, ...]

    def __post_init__(self) -> None:
        names = [reply.client for reply in self.replies]
        if names != sorted(set(names)):
            raise ValueError(f"replies stand in the order of distinct client names; got {names}")

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients, (m,)."""
        return tuple(reply.client for reply in self.replies)

    @property
    def examples(self) -> Vector:
        """The clients' own example counts, (m,)."""
        return np.array([reply.examples for reply in self.replies], dtype=np.float64)

    def head_weights(self) -> list[NDArray[np.generic]]:
        """The clients' updates of the head's weight as they were sent, m of (classes, d), not copied.

        Kernels of a 1x1 head are flattened.
        """
        return [reply.update[self.head.weight].reshape(self.head.shape[0], -1) for reply in self.replies]

    def head_rows(self) -> list[NDArray[np.generic]]:
        """The same with the bias, if the head has one, as a last column, m of (classes, d + 1)."""
        weights, bias = self.head_weights(), self.head.bias
        if bias is None:
            return weights
        biases = [reply.update[bias][:, None] for reply in self.replies]
        return [np.concatenate(pair, axis=1) for pair in zip(weights, biases, strict=True)]
