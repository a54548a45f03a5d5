"""Take the lowest frequencies out of long signals without transforming the rest."""

import math
from functools import lru_cache

import torch
from torch import Tensor

_LONG = 2048  # elements from which on the CPU filters a signal in parts; below, that costs more
_MOST_PARTS = 18  # divides what 3x3 convolutions over 2^k channels hold


def without_low_band(rows: Tensor, first: int, end: int, parts: int) -> Tensor:
    """``rows`` (..., length) less what their bins ``first`` to ``end - 1`` contribute, exactly.

    Decimation in time: every ``parts``-th element makes a signal of its own, short enough for a CPU's
    cache. A bin of the whole is the sum of that bin over the short signals, each turned by its offset.
    ``parts`` is as ``parts_of`` gives it.
    """
    length = rows.shape[-1]
    woven = rows.reshape(*rows.shape[:-1], length // parts, parts)
    spectra = torch.fft.rfft(woven.mT)
    keep_low_band(spectra, length, first, end)
    low_band = torch.fft.irfft(spectra, n=length // parts)
    filtered: Tensor = torch.sub(woven, low_band.mT, out=rows.new_empty(woven.shape))
    return filtered.view(rows.shape)


def keep_low_band(spectra: Tensor, length: int, first: int, end: int) -> None:
    """Turn a signal's short ones' spectra (..., parts, bins) into those of its bins ``first`` to ``end - 1``.

    In place: fresh memory costs more than the arithmetic.
    """
    parts = spectra.shape[-2]
    low = spectra[..., :end]
    if first:
        low[..., :first] = 0
    if parts > 1:
        turn = (length, end, parts, spectra.dtype)
        torch.mul(low.mul_(turns_of(*turn)).sum(-2, keepdim=True), _turns_back(*turn), out=low)
    spectra[..., end:] = 0


@lru_cache(maxsize=4096)
def parts_of(length: int, low: int, least: float = 1) -> int:
    """Into how many short signals to split a long one; 1 if it is not worth it or cannot be done.

    ``low`` bins must lie below the middle of a short signal's spectrum, which has ``least`` elements or more.
    """
    if length < _LONG:
        return 1
    possible = (q for q in range(2, _MOST_PARTS + 1) if length % q == 0)
    return max((q for q in possible if 2 * q * low <= length and q * least <= length), default=1)


@lru_cache(maxsize=64)
def turns_of(length: int, low: int, parts: int, dtype: torch.dtype) -> Tensor:
    """``exp(-2 pi i j k / length)`` for offset ``j`` and bin ``k``, (parts, low).

    Scaled so that turning there and back divides by ``parts``, as the inverse transform asks for.
    """
    steps = torch.outer(torch.arange(parts), torch.arange(low)) % length  # whole: no error grows with them
    angles = steps.double() * (-2 * math.pi / length)
    return torch.polar(torch.full_like(angles, parts**-0.5), angles).to(dtype)


@lru_cache(maxsize=64)
def _turns_back(length: int, low: int, parts: int, dtype: torch.dtype) -> Tensor:
    """The conjugates of ``turns_of``, in memory: a lazy conjugate is written out at each use."""
    return turns_of(length, low, parts, dtype).conj().resolve_conj()
