"""The drift spectrum: how far clients are apart in each frequency band (arXiv 2607.04189, its Dist and Std).

Of one layer, ``delta(j, k, m)`` is the L2 distance of the complex spectra of clients j and k inside band m.
``Dist(m)`` is its mean over all layers and pairs. For ``Std(m)`` the paper gives words and no equation:
here it is the population standard deviation over the pairs of a layer, averaged over the layers.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from common.bands import BANDS, band_edges, band_sums
from strategies.round import Vector

Norm = Literal["ortho", "backward"]


@dataclass(frozen=True)
class LayerBands:
    """One layer's bands; arrays are (bands,). Without a pair of clients there is no distance: NaN."""

    mean: Vector  # of the distances over all pairs
    std: Vector  # their population standard deviation
    energy: Vector  # the clients' squared norms in the band, summed


@dataclass(frozen=True)
class Bands:
    """The drift spectrum over layers; arrays are (bands,)."""

    dist: Vector
    std: Vector
    energy: Vector


def band_distances(
    rows: Sequence[NDArray[np.generic]], bands: int = BANDS, norm: Norm = "ortho"
) -> tuple[Vector, Vector]:
    """Of one tensor, with one array a client: distances (bands, pairs) and summed energies (bands,).

    Pairs stand in the order (0, 1), (0, 2), ..., (1, 2), ... . ``norm`` is that of the FFT: ``ortho`` makes
    layers of different sizes comparable, ``backward`` is the plain one; the energies are orthonormal with
    both. Takes tensors with at least ``bands`` bins. Holds the spectra of all clients of this one tensor:
    about 8 bytes an element and client.
    """
    length = rows[0].size
    edges = band_edges(length, bands)
    spectra = np.empty((len(rows), edges[-1]), dtype=np.complex128)
    for spectrum, row in zip(spectra, rows, strict=True):
        spectrum[:] = np.fft.rfft(np.asarray(row, dtype=np.float64).ravel(), norm=norm)
    # Distances stay what they are when all clients are moved by their mean, and lose fewer digits.
    mean = spectra.mean(axis=0)
    spectra -= mean
    power = len(rows) * _squares(mean)
    for spectrum in spectra:
        power += _squares(spectrum)
    energies = band_sums(power if norm == "ortho" else power / length, length, bands)
    inside = [spectra[:, a:b].view(np.float64) for a, b in itertools.pairwise(edges)]
    return np.stack([_distances(x @ x.T) for x in inside]), energies


def layer_bands(rows: Sequence[NDArray[np.generic]], bands: int = BANDS, norm: Norm = "ortho") -> LayerBands:
    """``band_distances`` of one tensor, summed up over the pairs."""
    distances, energies = band_distances(rows, bands, norm)
    if distances.shape[1] == 0:
        nothing = np.full(bands, np.nan)
        return LayerBands(nothing, nothing, energies)
    return LayerBands(distances.mean(axis=1), distances.std(axis=1), energies)


def over_layers(layers: Sequence[LayerBands], pooled: bool = False) -> Bands:
    """Dist, Std and energies over at least one layer.

    ``pooled`` takes the standard deviation over all pairs of all layers at once. That mixes how much layers
    differ in size with how much clients differ.
    """
    means = np.stack([layer.mean for layer in layers])
    stds = np.stack([layer.std for layer in layers])
    dist = means.mean(axis=0)
    within_and_between = np.sqrt((stds**2 + (means - dist) ** 2).mean(axis=0))
    return Bands(
        dist=dist,
        std=within_and_between if pooled else stds.mean(axis=0),
        energy=np.sum([layer.energy for layer in layers], axis=0),
    )


def _squares(spectrum: NDArray[np.complex128]) -> Vector:
    return np.square(spectrum.real) + np.square(spectrum.imag)


def _distances(gram: Vector) -> Vector:
    """The distances of all pairs of points from their inner products, (pairs,)."""
    j, k = np.triu_indices(len(gram), 1)
    squares = np.diag(gram)
    return np.sqrt(np.maximum(squares[j] + squares[k] - 2 * gram[j, k], 0.0))
