"""One round's admitted replies: what signals, scorers and weightings read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

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
    steps: int = 0  # local steps it took; 0 where nobody asked
    reports: Mapping[str, Arrays] = field(default_factory=dict)  # slots beside the update (common.slots)


@dataclass(frozen=True)
class Round:
    """One round, its replies in the order of the clients' names: arrival order changes nothing."""

    number: int
    model: Arrays  # the server's parameters, which nodes received unless the recipe sends others
    head: Head
    replies: tuple[Reply, ...]
    sent: Mapping[str, Arrays] = field(default_factory=dict)  # slots that nodes received beside the model
    learning_rate: float = 1.0  # of the nodes, in this round

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

    def head_rows(self) -> "HeadRows":
        """The updates of the head, one matrix a client."""
        return HeadRows(self)


@dataclass(frozen=True)
class HeadRows(Sequence[Vector]):
    """Of each client the update of the head, (classes, d + 1) in float64: a row a class, kernels flattened,
    the bias, if there is one, as a last column.

    A matrix is made when it is asked for: those of a hundred large heads at once would fill the memory.
    """

    round_: Round

    def __len__(self) -> int:
        return len(self.round_.replies)

    @overload
    def __getitem__(self, index: int) -> Vector: ...
    @overload
    def __getitem__(self, index: slice) -> list[Vector]: ...
    def __getitem__(self, index: int | slice) -> Vector | list[Vector]:
        """One client's matrix, or those of some clients."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        head, update = self.round_.head, self.round_.replies[index].update
        weight = update[head.weight]
        bias = [] if head.bias is None else [update[head.bias][:, None]]
        rows = [weight.reshape(weight.shape[0], -1), *bias]
        return np.concatenate(rows, axis=1, dtype=np.float64)
