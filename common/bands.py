"""The frequency bands of a flattened tensor, the same on nodes and server.

A real signal of ``d`` elements has ``nb = floor(d / 2) + 1`` frequency bins. Band m of M holds the bins
``floor(m * nb / M)`` up to, and without, ``floor((m + 1) * nb / M)``. Band 0 holds the lowest frequencies.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

BANDS = 10


@lru_cache(maxsize=4096)
def band_edges(length: int, bands: int = BANDS) -> tuple[int, ...]:
    """The first bin of each band, and the number of bins: ``bands + 1`` rising whole numbers."""
    bins = length // 2 + 1
    return tuple(m * bins // bands for m in range(bands + 1))


def has_bands(length: int, bands: int = BANDS) -> bool:
    """Whether a signal of so many elements has at least one bin for each band."""
    return length // 2 + 1 >= bands


def band_sums(power: NDArray[np.float64], length: int, bands: int = BANDS) -> NDArray[np.float64]:
    """Sum ``power``, squared magnitudes of the bins of an orthonormal real FFT, over each band; (bands,).

    Bins that stand for two, because a real signal's negative frequencies mirror them, count twice: the
    bands' sum is the signal's squared norm (Parseval). Takes a ``length`` that has bands.
    """
    twice = power.copy()
    twice[1 : (length + 1) // 2] *= 2  # neither bin 0 nor, for an even length, the last
    return np.add.reduceat(twice, band_edges(length, bands)[:-1])


def band_energies(signal: NDArray[np.generic], bands: int = BANDS) -> NDArray[np.float64]:
    """How the squared norm of a tensor, flattened with its last axis fastest, splits into bands; (bands,).

    Zeros for a tensor with fewer bins than bands.
    """
    x = np.asarray(signal, dtype=np.float64).ravel()
    if not has_bands(x.size, bands):
        return np.zeros(bands)
    return band_sums(np.abs(np.fft.rfft(x, norm="ortho")) ** 2, x.size, bands)
