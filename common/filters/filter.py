"""What a filter is, and two small ones."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Filter(Protocol):
    """A map of signals to signals of the same length. Equal filters do the same."""

    def changes(self, length: int) -> bool:
        """Whether a signal of so many elements can come out different."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Filter the last axis of ``rows`` (..., length); float32 or float64 in, the same out.

        ``rows`` stay as they are.
        """


@dataclass(frozen=True)
class Identity:
    """Leaves every signal alone."""

    def changes(self, length: int) -> bool:
        """Never."""
        return False

    def __call__(self, rows: Tensor) -> Tensor:
        """``rows`` themselves."""
        return rows


@dataclass(frozen=True)
class KeepMean:
    """``inner``, and then each signal gets its old mean back."""

    inner: Filter

    def changes(self, length: int) -> bool:
        """As ``inner`` does."""
        return self.inner.changes(length)

    def __call__(self, rows: Tensor) -> Tensor:
        """Filter the last axis of ``rows``."""
        out = self.inner(rows)
        return out + (rows.mean(-1, keepdim=True) - out.mean(-1, keepdim=True))


@dataclass(frozen=True)
class RowMean:
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
