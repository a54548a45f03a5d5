"""Bands: every bin in exactly one, and the energies add up to the squared norm."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.bands import BANDS, band_edges, band_energies, has_bands


def slow_energies(x: np.ndarray, bands: int) -> list[float]:
    """From the full FFT: a bin and its mirror image belong to the same band."""
    d = len(x)
    full = np.abs(np.fft.fft(x)) ** 2 / d
    nb = d // 2 + 1
    energies = [0.0] * bands
    for i, power in enumerate(full):
        bin_ = min(i, d - i)
        (band,) = [m for m in range(bands) if m * nb // bands <= bin_ < (m + 1) * nb // bands]
        energies[band] += power
    return energies


def test_edges_by_hand() -> None:
    assert band_edges(432) == (0, 21, 43, 65, 86, 108, 130, 151, 173, 195, 217)  # 217 bins
    assert band_edges(4, 3) == (0, 1, 2, 3)
    assert [has_bands(d) for d in (17, 18, 19, 20)] == [False, True, True, True]  # 18 elements: 10 bins


@given(st.integers(18, 10**7))
def test_edges_rise_from_the_first_bin_to_the_last(length: int) -> None:
    edges = band_edges(length)
    assert (len(edges), edges[0], edges[-1]) == (BANDS + 1, 0, length // 2 + 1)
    assert all(a < b for a, b in itertools.pairwise(edges))


@given(st.integers(4, 90), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_energies_are_those_of_the_full_spectrum_and_add_up(length: int, bands: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=length)
    energies = band_energies(x, bands)
    np.testing.assert_allclose(energies, slow_energies(x, bands), rtol=1e-9, atol=1e-12)
    assert energies.sum() == pytest.approx((x**2).sum())


def test_a_tensor_is_flattened_with_its_last_axis_fastest() -> None:
    x = np.random.default_rng(0).normal(size=(4, 3, 5)).astype(np.float32)
    np.testing.assert_array_equal(band_energies(np.asfortranarray(x)), band_energies(x.reshape(-1)))


def test_a_tensor_without_bands_has_no_energy_in_them() -> None:
    assert band_energies(np.ones(17)).tolist() == [0.0] * 10
    assert band_energies(np.zeros(100)).tolist() == [0.0] * 10
