"""Slow, obvious forms of the filters, and the signals that tests put through them."""

import numpy as np
import torch
from torch import Tensor

from common.filters import low_bins

SMALL_LENGTHS = [1, 2, 3, 5, 7, 36, 37, 38, 39, 41, 64, 97, 101, 128, 211]


def signal(length: int, seed: int = 0) -> Tensor:
    """Normal noise in float64."""
    return torch.randn(length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def projection(length: int, removed: list[int]) -> np.ndarray:
    """The matrix that takes the real waves of these frequencies out of a signal."""
    n = np.arange(length)
    gone = np.zeros((length, length))
    for k in removed:
        wave = np.exp(2j * np.pi * k * n / length)
        both_signs = 1 if k == 0 or 2 * k == length else 2
        gone += both_signs * np.real(np.outer(wave, wave.conj())) / length
    return np.eye(length) - gone


def dense(length: int, removed: int) -> np.ndarray:
    """``FftHighPass`` by its definition."""
    return projection(length, list(range(removed)))


def by_masking(rows: Tensor, removed: int, first: int = 0) -> Tensor:
    """``FftHighPass`` of long signals, in float64 and all at once."""
    spectrum = torch.fft.rfft(rows.double())
    spectrum[..., first:removed] = 0
    return torch.fft.irfft(spectrum, n=rows.shape[-1])


def less_average(values: list[float], weights: list[float]) -> list[float]:
    """Element by element: less the weighted mean of the neighbours that exist."""
    radius, out = len(weights) // 2, []
    for i, value in enumerate(values):
        near = [
            (values[i + offset], weights[offset + radius])
            for offset in range(-radius, radius + 1)
            if 0 <= i + offset < len(values)
        ]
        out.append(value - sum(v * w for v, w in near) / sum(w for _, w in near))
    return out


def ratio_for(removed: int, length: int) -> float:
    """A ratio at which ``low_bins`` is ``removed``: half a bin above it."""
    ratio = (removed + 0.5) / (length // 2 + 1)
    assert low_bins(ratio, length) == removed
    return ratio
