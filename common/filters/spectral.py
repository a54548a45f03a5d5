"""Filters that are defined by the bins of a signal's real Fourier transform."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from common.filters.decimation import parts_of, without_low_band
from common.filters.draws import drawn
from common.filters.filter import Filter, by_length
from common.filters.shared import Band, without_low_bands
from common.filters.woven import middling, without_woven_bands


@lru_cache(maxsize=4096)
def low_bins(ratio: float, length: int) -> int:
    """``floor(ratio * bins)``, the number of low bins of a real signal of ``length`` elements.

    Exact: a binary 0.29 times 100 bins would give 28. At ratio 0.05 the first length that has a low
    bin is 38, because it is the first with 20 bins. Raises ValueError for a ratio that is no share below 1.
    """
    if not 0.0 <= ratio < 1.0:
        raise ValueError(f"ratio is a share of the frequency bins, 0 <= ratio < 1; got {ratio}")
    return math.floor(Fraction(str(ratio)) * (length // 2 + 1))


@dataclass(frozen=True)
class FftHighPass(Filter):
    """Zero the lowest ``floor(ratio * bins)`` of the ``length // 2 + 1`` frequency bins.

    An orthogonal projection: linear, symmetric, idempotent, never lengthens a signal. It removes the
    mean (bin 0) as soon as it removes anything, unless ``keep_dc``. Ratio 0, or a signal too short to
    lose a whole bin, is left as it is.
    """

    ratio: float
    keep_dc: bool = False

    def changes(self, length: int) -> bool:
        """True if at least one bin is removed."""
        return low_bins(self.ratio, length) > self.keep_dc

    def __call__(self, rows: Tensor) -> Tensor:
        """Filter the last axis of ``rows``."""
        length = rows.shape[-1]
        if not self.changes(length):
            return rows
        first, end = int(self.keep_dc), low_bins(self.ratio, length)
        parts = parts_of(length, end)
        if parts > 1 and rows.device.type == "cpu":
            return without_low_band(rows, first, end, parts)
        return _without(rows, slice(first, end))

    def together(self, signals: Sequence[Tensor]) -> list[Tensor]:
        """Filter several signals."""
        bands = _bands(self.ratio, tuple([x.numel() for x in signals]))
        first = int(self.keep_dc)
        if signals[0].device.type != "cpu":
            return without_low_bands(signals, bands, first)
        chosen, others = middling(bands)
        results = dict(zip(others, by_length(self, [signals[i] for i in others]), strict=True))
        woven = without_woven_bands([signals[i] for i in chosen], tuple([bands[i] for i in chosen]), first)
        results.update(zip(chosen, woven, strict=True))
        return [results[i] for i in range(len(signals))]


@dataclass(frozen=True)
class FftLowPass(Filter):
    """Zero the highest ``floor(ratio * bins)`` bins, Nyquist's among them: a control.

    As many bins as ``FftHighPass`` of the same ratio takes. The mean always stays.
    """

    ratio: float

    def changes(self, length: int) -> bool:
        """True if at least one bin is removed."""
        return low_bins(self.ratio, length) > 0

    def __call__(self, rows: Tensor) -> Tensor:
        """Filter the last axis of ``rows``."""
        length = rows.shape[-1]
        bins = length // 2 + 1
        return _without(rows, slice(bins - low_bins(self.ratio, length), bins))


@dataclass(frozen=True)
class RandomBins(Filter):
    """Zero ``floor(ratio * bins)`` bins that ``(seed, name)`` draws without replacement: a control.

    One draw for a tensor's whole life, the same in every process, so that it is a fixed projection as
    ``FftHighPass`` is one. Bin 0 may be drawn, unless ``keep_dc``.
    """

    ratio: float
    seed: int
    name: str
    keep_dc: bool = False

    def changes(self, length: int) -> bool:
        """True if at least one bin is removed."""
        return low_bins(self.ratio, length) > 0

    def __call__(self, rows: Tensor) -> Tensor:
        """Filter the last axis of ``rows``."""
        length, first = rows.shape[-1], int(self.keep_dc)
        count = low_bins(self.ratio, length)
        bins = length // 2 + 1 - first
        return _without(rows, first + drawn(self.seed, "filter-bins", self.name, bins, rows.device)[:count])


@dataclass(frozen=True)
class L2Rescale(Filter):
    """Shrink a signal to the length that ``FftHighPass`` leaves it, in its own direction: a control.

    It tells a smaller step from a turned one. The removed energy comes from the low bins by Parseval's
    theorem, ``(|X_0|^2 + 2 |X_1|^2 + ...) / length``, without an inverse transform. Zero stays zero.
    """

    ratio: float
    keep_dc: bool = False

    def changes(self, length: int) -> bool:
        """True if ``FftHighPass`` removes at least one bin."""
        return low_bins(self.ratio, length) > self.keep_dc

    def __call__(self, rows: Tensor) -> Tensor:
        """Rescale each signal along the last axis of ``rows``."""
        length, low = rows.shape[-1], low_bins(self.ratio, rows.shape[-1])
        peak = rows.abs().amax(-1, keepdim=True)
        # What stays, not what goes: a difference of near-equal energies would lose its digits. Of numbers of
        # at most 1, in float64: no square overflows or vanishes.
        unit = torch.where(peak > 0, rows / peak, 0).double()
        bins = torch.fft.rfft(unit, norm="ortho").abs().square()
        bins[..., 1 : (length + 1) // 2] *= 2
        energy = bins.sum(-1, keepdim=True)
        bins[..., int(self.keep_dc) : low] = 0
        kept = torch.where(energy > 0, bins.sum(-1, keepdim=True) / energy, 0)
        return rows * kept.sqrt().to(rows.dtype)


@lru_cache(maxsize=64)
def _bands(ratio: float, lengths: tuple[int, ...]) -> tuple[Band, ...]:
    return tuple(Band(length, low_bins(ratio, length)) for length in lengths)


def _without(rows: Tensor, bins: slice | Tensor) -> Tensor:
    spectrum = torch.fft.rfft(rows)
    spectrum[..., bins] = 0
    filtered: Tensor = torch.fft.irfft(spectrum, n=rows.shape[-1])  # without n an odd length comes back even
    return filtered
