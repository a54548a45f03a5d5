"""What a filter is, and two small ones."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

_LONG = 1 << 14  # elements from which on a CPU gains nothing from stacking signals


class Filter(Protocol):
    """A map of signals to signals of the same length. Equal filters do the same."""

    def changes(self, length: int) -> bool:
        """Whether a signal of so many elements can come out different."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Filter the last axis of ``rows`` (..., length); float32 or float64 in, the same out.

        ``rows`` stay as they are.
        """

    def together(self, signals: Sequence[Tensor]) -> list[Tensor]:
        """Filter signals (length,) of one dtype and device, each of which this filter changes.

        Results may lie in one piece of memory, but in different places of it. Unless a filter knows a
        faster way, ``by_length``.
        """
        return by_length(self, signals)


def by_length(filter_: Filter, signals: Sequence[Tensor]) -> list[Tensor]:
    """What ``together`` promises: signals of one length are stacked, long ones on a CPU are not."""
    results = list(signals)
    device = signals[0].device.type if signals else "cpu"
    for places in _stacks(tuple([x.numel() for x in signals]), device):
        if len(places) == 1:
            results[places[0]] = filter_(signals[places[0]])
            continue
        rows = filter_(torch.stack([signals[i] for i in places]))
        for i, row in zip(places, rows.unbind(0), strict=True):
            results[i] = row
    return results


@lru_cache(maxsize=64)
def _stacks(lengths: tuple[int, ...], device: str) -> list[list[int]]:
    """Which signals to filter together."""
    stacks: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, length in enumerate(lengths):
        alone = device == "cpu" and length >= _LONG
        stacks[length, i if alone else -1].append(i)
    return list(stacks.values())


@dataclass(frozen=True)
class Identity(Filter):
    """Leaves every signal alone."""

    def changes(self, length: int) -> bool:
        """Never."""
        return False

    def __call__(self, rows: Tensor) -> Tensor:
        """``rows`` themselves."""
        return rows

    def together(self, signals: Sequence[Tensor]) -> list[Tensor]:
        """The signals themselves."""
        return list(signals)


@dataclass(frozen=True)
class KeepMean(Filter):
    """``inner``, and then each signal gets its old mean back."""

    inner: Filter

    def changes(self, length: int) -> bool:
        """As ``inner`` does."""
        return self.inner.changes(length)

    def __call__(self, rows: Tensor) -> Tensor:
        """Filter the last axis of ``rows``."""
        return _with_mean_of(rows, self.inner(rows))

    def together(self, signals: Sequence[Tensor]) -> list[Tensor]:
        """Filter several signals."""
        return [_with_mean_of(x, y) for x, y in zip(signals, self.inner.together(signals), strict=True)]


def _with_mean_of(rows: Tensor, out: Tensor) -> Tensor:
    return out + (rows.mean(-1, keepdim=True) - out.mean(-1, keepdim=True))


@dataclass(frozen=True)
class RowMean(Filter):
    """Removes the mean of every ``width`` elements in a row: a control without any frequencies.

    A weight's row is what one output unit reads. Rows of one element are left alone.
    """

    width: int

    def changes(self, length: int) -> bool:
        """True for rows of two elements or more."""
        return self.width > 1 and length > 0

    def __call__(self, rows: Tensor) -> Tensor:
        """Filter the last axis of ``rows``, a multiple of ``width``."""
        split = rows.reshape(*rows.shape[:-1], -1, self.width)
        return (split - split.mean(-1, keepdim=True)).reshape(rows.shape)
