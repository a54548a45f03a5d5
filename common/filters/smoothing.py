"""Filters that subtract a signal's local average: cheap stand-ins for the spectral high-pass.

SpecGradFilter names a moving average (LAP-D) and a Gaussian (GD) as its spatial variants. The widths are
derived by us, because the paper's are not public: the smoother passes half the power at the FFT filter's
cut-off, ``ratio / 2`` cycles an element. Unlike the FFT filter they are no projections: filtering twice
does more, and the low bins of a filtered weight do move.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from common.filters.filter import Filter
from common.filters.spectral import low_bins
from common.filters.toeplitz import less_average


def moving_average_width(ratio: float) -> int:
    """The odd number nearest to ``0.886 / ratio``, at least 3; 17 at ratio 0.05. Derived by us."""
    return max(3, 2 * math.floor(0.443 / ratio) + 1)


def gaussian_sigma(ratio: float) -> float:
    """``0.265 / ratio`` elements; 5.3 at ratio 0.05. Derived by us."""
    return 0.265 / ratio


@dataclass(frozen=True)
class LapD(Filter):
    """Subtract the mean of the ``kernel`` elements around each element (LAP-D).

    At the ends only the elements that exist are averaged, so that a constant comes out as zero
    everywhere. Signals shorter than the kernel take the largest odd one that fits, at least 3. Signals
    of which ``FftHighPass(ratio)`` removes no bin are left alone. ``kernel`` 0 derives it from the
    ratio, which is our reading.
    """

    ratio: float
    kernel: int = 0

    def changes(self, length: int) -> bool:
        """True where the FFT filter of this ratio removes at least one bin."""
        return low_bins(self.ratio, length) > 0

    def __call__(self, rows: Tensor) -> Tensor:
        """Filter the last axis of ``rows``."""
        return _rows(self.together, rows)

    def together(self, signals: Sequence[Tensor]) -> list[Tensor]:
        """Filter several signals."""
        widest = self.kernel or moving_average_width(self.ratio)
        widths = [min(widest, max(3, (len(x) - 1) // 2 * 2 + 1)) for x in signals]
        results = list(signals)
        for width in set(widths):
            places = [i for i, fitting in enumerate(widths) if fitting == width]
            for i, x in zip(places, less_average([signals[i] for i in places], box(width)), strict=True):
                results[i] = x
        return results


@dataclass(frozen=True)
class Gd(Filter):
    """Subtract the Gaussian-weighted mean of the elements around each element (GD).

    The Gaussian of standard deviation ``sigma`` ends at three of them, rounded up. At the ends the
    weights of the elements that exist are scaled to sum to 1, so that a constant comes out as zero
    everywhere. Signals of which ``FftHighPass(ratio)`` removes no bin are left alone. ``sigma`` 0
    derives it from the ratio, which is our reading.
    """

    ratio: float
    sigma: float = 0.0

    def changes(self, length: int) -> bool:
        """True where the FFT filter of this ratio removes at least one bin."""
        return low_bins(self.ratio, length) > 0

    def __call__(self, rows: Tensor) -> Tensor:
        """Filter the last axis of ``rows``."""
        return _rows(self.together, rows)

    def together(self, signals: Sequence[Tensor]) -> list[Tensor]:
        """Filter several signals."""
        return less_average(signals, gaussian(self.sigma or gaussian_sigma(self.ratio)))


def _rows(together: Callable[[Sequence[Tensor]], list[Tensor]], rows: Tensor) -> Tensor:
    signals = rows.reshape(-1, rows.shape[-1]).contiguous().unbind(0)
    return torch.stack(together(signals)).reshape(rows.shape)


@lru_cache(maxsize=64)
def box(width: int) -> tuple[float, ...]:
    """Equal weights of sum 1."""
    return (1 / width,) * width


@lru_cache(maxsize=64)
def gaussian(sigma: float) -> tuple[float, ...]:
    """Weights ``exp(-n^2 / 2 sigma^2)`` for ``|n| <= ceil(3 sigma)``, of sum 1."""
    radius = math.ceil(3 * sigma)
    weights = [math.exp(-0.5 * (n / sigma) ** 2) for n in range(-radius, radius + 1)]
    total = math.fsum(weights)
    return tuple(w / total for w in weights)
