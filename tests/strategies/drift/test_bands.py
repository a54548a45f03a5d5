"""Dist and Std: the oracle by hand, a loop over pairs, and what must not change them."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.drift.bands import Norm, band_distances, layer_bands, over_layers

M1 = [np.array([1.0, 2, 3, 4]), np.ones(4), np.zeros(4)]


def slow(rows: list[np.ndarray], bands: int, norm: Norm) -> np.ndarray:
    """The definition, pair by pair."""
    found = []
    for m in range(bands):
        found.append([])
        for a, b in combinations(rows, 2):
            nb = len(a) // 2 + 1
            inside = slice(m * nb // bands, (m + 1) * nb // bands)
            difference = np.fft.rfft(a, norm=norm)[inside] - np.fft.rfft(b, norm=norm)[inside]
            found[-1].append(np.sqrt((np.abs(difference) ** 2).sum()))
    return np.array(found)


def draw(seed: int, clients: int, length: int) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).normal(size=(clients, length)))


def test_the_oracle_by_hand() -> None:
    distances, _ = band_distances(M1, bands=3, norm="backward")
    np.testing.assert_allclose(distances[0], [6, 10, 4])
    np.testing.assert_allclose(distances[1], [2.828427, 2.828427, 0], atol=1e-6)
    np.testing.assert_allclose(distances[2], [2, 2, 0], atol=1e-12)
    layer = layer_bands(M1, bands=3, norm="backward")
    np.testing.assert_allclose(layer.mean, [6.666667, 1.885618, 1.333333], atol=1e-6)
    np.testing.assert_allclose(layer.std, [2.494438, 1.333333, 0.942809], atol=1e-6)
    whole = over_layers([layer])
    np.testing.assert_array_equal(whole.dist, layer.mean)
    np.testing.assert_array_equal(whole.std, layer.std)


def test_ortho_divides_by_the_root_of_the_length() -> None:
    ortho, energies = band_distances(M1, bands=3)
    backward, same = band_distances(M1, bands=3, norm="backward")
    np.testing.assert_allclose(ortho, backward / 2)
    np.testing.assert_allclose(energies, same)
    # Squared norms 30 and 4. Spectra (10, -2 + 2i, -2) and (4, 0, 0), the middle bin counts twice, over 4.
    np.testing.assert_allclose(energies, [29, 4, 1])


@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 5),
    st.integers(18, 70),
    st.integers(1, 10),
    st.sampled_from(["ortho", "backward"]),
)
def test_they_are_the_pairs_one_by_one(seed: int, clients: int, length: int, bands: int, norm: Norm) -> None:
    rows = draw(seed, clients, length)
    distances, energies = band_distances(rows, bands, norm)
    np.testing.assert_allclose(distances, slow(rows, bands, norm), rtol=1e-9, atol=1e-12)
    assert energies.sum() == pytest.approx(sum((row**2).sum() for row in rows))


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.floats(1e-6, 1e6))
def test_order_shift_and_scale_of_the_clients(seed: int, clients: int, scale: float) -> None:
    rows = draw(seed, clients, 40)
    base = layer_bands(rows)
    order = np.random.default_rng(seed).permutation(clients)
    shuffled = layer_bands([rows[i] for i in order])
    np.testing.assert_allclose(shuffled.mean, base.mean, rtol=1e-9)
    np.testing.assert_allclose(shuffled.std, base.std, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(shuffled.energy, base.energy, rtol=1e-9)
    scaled = layer_bands([scale * row for row in rows])
    np.testing.assert_allclose(scaled.mean, scale * base.mean, rtol=1e-9)
    np.testing.assert_allclose(scaled.energy, scale**2 * base.energy, rtol=1e-9)
    moved = layer_bands([row + 3 for row in rows])
    np.testing.assert_allclose(moved.mean, base.mean, rtol=1e-7)


def test_small_differences_beside_a_large_mean_are_not_lost() -> None:
    common, small = 1e6 * draw(0, 1, 100)[0], draw(1, 2, 100)
    near = [common + 1e-4 * row for row in small]
    far = [1e-4 * row for row in small]
    np.testing.assert_allclose(layer_bands(near).mean, layer_bands(far).mean, rtol=1e-4)


def test_shape_and_type_of_an_array_do_not_matter() -> None:
    rows = [row.astype(np.float32) for row in draw(2, 3, 60)]
    shaped = [np.asfortranarray(row.reshape(4, 15)) for row in rows]
    np.testing.assert_array_equal(layer_bands(shaped).mean, layer_bands(rows).mean)


def test_layers_are_averaged_each_with_its_own_spread() -> None:
    one = layer_bands(draw(3, 4, 50))
    other = layer_bands([10 * row for row in draw(4, 4, 80)])
    whole, pooled = over_layers([one, other]), over_layers([one, other], pooled=True)
    np.testing.assert_allclose(whole.dist, (one.mean + other.mean) / 2)
    np.testing.assert_allclose(whole.std, (one.std + other.std) / 2)
    np.testing.assert_allclose(whole.energy, one.energy + other.energy)
    values = np.concatenate(
        [band_distances(draw(3, 4, 50))[0], band_distances([10 * r for r in draw(4, 4, 80)])[0]], axis=1
    )
    np.testing.assert_allclose(pooled.std, values.std(axis=1))
    np.testing.assert_allclose(pooled.dist, values.mean(axis=1))


def test_one_client_has_energies_and_no_distances() -> None:
    layer = layer_bands(draw(5, 1, 40))
    assert np.isnan(layer.mean).all() and np.isnan(layer.std).all()
    assert layer.energy.sum() == pytest.approx((draw(5, 1, 40)[0] ** 2).sum())


def test_zeros_are_no_distance_apart() -> None:
    layer = layer_bands([np.zeros(40), np.zeros(40)])
    assert layer.mean.tolist() == layer.std.tolist() == layer.energy.tolist() == [0.0] * 10
