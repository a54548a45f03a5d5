"""The spectral filters against worked examples, a dense DFT and their defining properties."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from common.filters import FftHighPass, FftLowPass, Filter, L2Rescale, RandomBins, low_bins
from common.filters.draws import drawn
from tests.common.filters.oracles import SMALL_LENGTHS, by_masking, dense, projection, ratio_for, signal

LENGTHS = st.integers(1, 70)
RATIOS = st.integers(0, 99).map(lambda percent: percent / 100)


def filtered(values: list[float], removed: int) -> list[float]:
    filter_ = FftHighPass(ratio_for(removed, len(values)))
    assert low_bins(filter_.ratio, len(values)) == removed
    output: list[float] = filter_(torch.tensor(values, dtype=torch.float64)).tolist()
    return output


# Worked examples


def golden(n: int) -> float:
    return (1.0 if n == 0 else 0.0) - (1 + 2 * math.cos(2 * math.pi * n / 5)) / 5


@pytest.mark.parametrize(
    ("values", "removed", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], 1, [-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5]),  # only the mean goes
        ([1, 2, 3, 4], 2, [-0.5, 0.5, -0.5, 0.5]),  # only the Nyquist wave stays
        ([1, 0, 0, 0, 0], 1, [0.8, -0.2, -0.2, -0.2, -0.2]),
        ([1, 0, 0, 0, 0], 2, [golden(n) for n in range(5)]),
        ([1, 0, 0, 0, 0], 2, [0.4, -0.323607, 0.123607, 0.123607, -0.323607]),
        ([6, 0, 0, 0, 0, 0], 2, [3, -2, 0, 1, 0, -2]),
    ],
)
def test_signals_worked_out_by_hand(values: list[float], removed: int, expected: list[float]) -> None:
    assert filtered(values, removed) == pytest.approx(expected, abs=1e-6)


def test_at_five_percent_38_elements_are_the_fewest_that_change() -> None:
    shorter = torch.ones(37)
    assert FftHighPass(0.05)(shorter) is shorter
    assert FftHighPass(0.05)(torch.ones(38)).abs().max() < 1e-6
    assert [n for n in range(1, 60) if FftHighPass(0.05).changes(n)] == list(range(38, 60))


@pytest.mark.parametrize("length", [5, 38, 39, 101])
def test_a_signal_keeps_its_length(length: int) -> None:
    assert FftHighPass(0.5)(torch.ones(length)).shape == (length,)


# The number of bins


def test_a_ratio_is_taken_as_written_not_as_binary() -> None:
    assert low_bins(0.29, 198) == 29  # 100 bins; 0.29 * 100 is 28.999999999999996
    assert math.floor(0.29 * 100) == 28


def test_low_bins_at_five_percent() -> None:
    bins = {0: 0, 1: 0, 37: 0, 38: 1, 64: 1, 128: 3, 256: 6, 432: 10, 512: 12, 640: 16, 2304: 57, 4608: 115}
    bins |= {9216: 230, 36864: 921, 147456: 3686, 589824: 14745, 2359296: 58982}
    assert {length: low_bins(0.05, length) for length in bins} == bins


@given(percent=st.integers(0, 99), length=st.integers(0, 10**7))
def test_low_bins_are_exact_and_leave_a_bin(percent: int, length: int) -> None:
    bins = length // 2 + 1
    removed = low_bins(percent / 100, length)
    assert removed == math.floor(Fraction(percent, 100) * bins) == percent * bins // 100
    assert 0 <= removed <= length // 2


@pytest.mark.parametrize("ratio", [-0.01, 1.0, 2.0, math.nan, math.inf])
def test_a_ratio_is_a_share_below_one(ratio: float) -> None:
    with pytest.raises(ValueError, match="0 <= ratio < 1"):
        low_bins(ratio, 100)


# What the filter is


@pytest.mark.parametrize("length", [2, 3, 8, 9, 31, 40])
def test_the_filter_is_the_dense_projection(length: int) -> None:
    for removed in range(1, length // 2 + 1):
        matrix = FftHighPass(ratio_for(removed, length))(torch.eye(length, dtype=torch.float64)).numpy()
        np.testing.assert_allclose(matrix, dense(length, removed), atol=1e-13)
        assert np.linalg.matrix_rank(matrix) == length - (2 * removed - 1)


@given(length=LENGTHS, ratio=RATIOS, seed=st.integers(0, 10**6), a=st.floats(-5, 5))
def test_it_is_an_orthogonal_projection(length: int, ratio: float, seed: int, a: float) -> None:
    p = FftHighPass(ratio)
    x, y = signal(length, seed), signal(length, seed + 1)
    torch.testing.assert_close(p(p(x)), p(x))
    torch.testing.assert_close(p(x) @ y, x @ p(y))
    torch.testing.assert_close(p(a * x + y), a * p(x) + p(y))
    torch.testing.assert_close(x @ p(x), p(x).square().sum())
    assert p(x).norm() <= x.norm() * (1 + 1e-12)


@given(length=st.integers(2, 70), ratio=RATIOS, seed=st.integers(0, 10**6))
def test_low_bins_are_gone_and_the_others_as_they_were(length: int, ratio: float, seed: int) -> None:
    x = signal(length, seed)
    removed = low_bins(ratio, length)
    before, after = torch.fft.rfft(x), torch.fft.rfft(FftHighPass(ratio)(x))
    assert after[:removed].abs().max().item() < 1e-12 if removed else torch.equal(after, before)
    torch.testing.assert_close(after[removed:], before[removed:], atol=1e-12, rtol=1e-12)


def test_float32_is_idempotent_to_a_millionth() -> None:
    x = torch.randn(4608, generator=torch.Generator().manual_seed(0))
    once = FftHighPass(0.05)(x)
    torch.testing.assert_close(FftHighPass(0.05)(once), once, atol=2e-6, rtol=0)


def test_rows_are_filtered_one_by_one_and_not_changed() -> None:
    rows = torch.randn(2, 3, 40, dtype=torch.float64)
    before = rows.clone()
    out = FftHighPass(0.2)(rows)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(out[i, j], FftHighPass(0.2)(rows[i, j]))
    assert torch.equal(rows, before)


# Long signals, which a CPU filters in parts


# Powers of two, ResNet's layers, odd with small factors, twice a prime, 17 * 241, and a prime.
LONG = [4095, 4096, 4608, 9216, 4125, 8198, 4097, 4099, 36864]


@pytest.mark.parametrize("length", LONG)
def test_a_long_signal_loses_the_same_bins(length: int) -> None:
    rows = signal(3 * length, 1).reshape(3, length)
    before = rows.clone()
    for removed in [1, 2, length // 40, length // 32, length // 4, length // 2]:
        out = FftHighPass(ratio_for(removed, length))(rows)
        torch.testing.assert_close(out, by_masking(rows, removed), atol=1e-12, rtol=0)
    assert torch.equal(rows, before)


@pytest.mark.parametrize("parts", range(2, 17))
def test_a_band_that_just_fits_into_a_part_is_removed(parts: int) -> None:
    length = 2 * parts * 1200
    for removed in (length // (2 * parts), length // (2 * parts) + 1):
        out = FftHighPass(ratio_for(removed, length))(signal(length, 2))
        torch.testing.assert_close(out, by_masking(signal(length, 2), removed), atol=1e-12, rtol=0)


@pytest.mark.parametrize("length", LONG)
def test_long_float32_is_exact_to_a_millionth(length: int) -> None:
    rows = signal(3 * length).reshape(3, length)
    expected = by_masking(rows, low_bins(0.05, length))
    torch.testing.assert_close(FftHighPass(0.05)(rows.float()).double(), expected, atol=3e-6, rtol=0)


# The mean kept


@pytest.mark.parametrize("length", [*SMALL_LENGTHS, 4096, 4125, 4099])
def test_keep_dc_leaves_bin_0_alone(length: int) -> None:
    x = signal(length)
    for removed in {1, 2, length // 40, length // 4} & set(range(1, length // 2 + 1)):
        ratio = ratio_for(removed, length)
        kept = FftHighPass(ratio, keep_dc=True)
        assert kept.changes(length) == (removed > 1)
        expected = FftHighPass(ratio)(x) + x.mean()
        torch.testing.assert_close(kept(x), expected, atol=1e-12, rtol=0)
        torch.testing.assert_close(kept(x).mean(), x.mean(), atol=1e-12, rtol=0)
    assert FftHighPass(ratio_for(min(1, length // 2), length), keep_dc=True)(x) is x


# Controls


def test_high_of_eight_values_by_hand() -> None:
    x = torch.tensor([3.0, 1, 3, 1, 3, 1, 3, 1], dtype=torch.float64)
    torch.testing.assert_close(FftLowPass(ratio_for(1, 8))(x), torch.full((8,), 2.0).double())


def test_rescaling_of_four_values_by_hand() -> None:
    x = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)
    out = L2Rescale(ratio_for(2, 4))(x)
    assert out.tolist() == pytest.approx([0.182574, 0.365148, 0.547723, 0.730297], abs=5e-7)
    assert out.norm().item() == pytest.approx(1)


@pytest.mark.parametrize("length", [2, 3, 8, 9, 37, 38, 41])
def test_high_and_random_are_dense_projections(length: int) -> None:
    bins = length // 2 + 1
    eye = torch.eye(length, dtype=torch.float64)
    for removed in range(1, bins):
        high = FftLowPass(ratio_for(removed, length))(eye).numpy()
        np.testing.assert_allclose(high, projection(length, list(range(bins - removed, bins))), atol=1e-13)
        rand = RandomBins(ratio_for(removed, length), 0, "w")(eye)
        gone = gone_bins(rand)
        assert len(gone) == removed
        np.testing.assert_allclose(rand.numpy(), projection(length, gone), atol=1e-13)


def gone_bins(matrix: Tensor) -> list[int]:
    """The bins that a filter zeroes, from what it makes of all unit signals."""
    return torch.nonzero(torch.fft.rfft(matrix).abs().amax(0) < 1e-9).flatten().tolist()


@pytest.mark.parametrize("length", SMALL_LENGTHS)
@pytest.mark.parametrize("ratio", [0.05, 0.3])
def test_a_control_touches_what_the_filter_touches(length: int, ratio: float) -> None:
    expected = low_bins(ratio, length) > 0
    controls: list[Filter] = [FftLowPass(ratio), RandomBins(ratio, 0, "w"), L2Rescale(ratio)]
    assert [control.changes(length) for control in controls] == [expected] * 3


def drawn_bins(seed: int, name: str, keep_dc: bool = False, length: int = 200) -> list[int]:
    return gone_bins(RandomBins(0.2, seed, name, keep_dc)(torch.eye(length, dtype=torch.float64)))


def test_a_draw_belongs_to_a_seed_and_a_tensor() -> None:
    draws = [drawn_bins(0, "a"), drawn_bins(0, "b"), drawn_bins(1, "a")]
    assert draws[0] == drawn_bins(0, "a")
    assert draws[0] != draws[1] != draws[2] != draws[0]
    assert [len(draw) for draw in draws] == [20] * 3


def test_every_bin_may_be_drawn_and_all_alike() -> None:
    counts = np.zeros(41)
    for i in range(400):
        counts[gone_bins(RandomBins(0.25, 0, str(i))(torch.eye(80, dtype=torch.float64)))] += 1
    assert counts.sum() == 400 * 10
    assert (np.abs(counts - 400 * 10 / 41) < 5 * np.sqrt(400 * 0.25 * 0.75)).all()


def test_keep_dc_draws_among_the_others() -> None:
    draws = [drawn_bins(0, str(i), keep_dc=True, length=20) for i in range(60)]
    assert {len(draw) for draw in draws} == {2} and not any(0 in draw for draw in draws)
    assert any(1 in draw for draw in draws) and any(10 in draw for draw in draws)


def test_the_draw_is_pinned() -> None:
    # Whatever draws otherwise would give the nodes of a mixed federation different filters.
    assert drawn(5, "filter-bins", "w", 30).tolist()[:5] == [2, 18, 9, 1, 24]
    assert sorted(drawn(5, "filter-bins", "w", 30).tolist()) == list(range(30))


@given(length=LENGTHS, ratio=RATIOS, seed=st.integers(0, 10**6), keep_dc=st.booleans())
@example(length=37, ratio=0.05, seed=0, keep_dc=False)
@example(length=38, ratio=0.05, seed=0, keep_dc=False)
@example(length=1, ratio=0.9, seed=0, keep_dc=False)
def test_rescaling_has_the_length_of_the_filtered_and_the_direction_of_the_signal(
    length: int, ratio: float, seed: int, keep_dc: bool
) -> None:
    x = signal(length, seed)
    out = L2Rescale(ratio, keep_dc)(x)
    factor = FftHighPass(ratio, keep_dc)(x).norm() / x.norm()
    torch.testing.assert_close(out, factor * x, atol=1e-7, rtol=0)


def test_rescaling_nothing_gives_nothing_and_what_would_vanish_vanishes() -> None:
    assert torch.equal(L2Rescale(0.05)(torch.zeros(2, 64)), torch.zeros(2, 64))
    assert L2Rescale(0.05)(torch.ones(64)).abs().max() < 1e-3


@given(length=LENGTHS, ratio=RATIOS, seed=st.integers(0, 10**6), a=st.floats(-5, 5))
def test_high_and_random_are_orthogonal_projections(length: int, ratio: float, seed: int, a: float) -> None:
    x, y = signal(length, seed), signal(length, seed + 1)
    for p in (FftLowPass(ratio), RandomBins(ratio, seed, "w"), RandomBins(ratio, seed, "w", True)):
        torch.testing.assert_close(p(p(x)), p(x), atol=1e-12, rtol=0)
        torch.testing.assert_close(p(x) @ y, x @ p(y), atol=1e-11, rtol=1e-9)
        torch.testing.assert_close(p(a * x + y), a * p(x) + p(y), atol=1e-12, rtol=0)
        torch.testing.assert_close(x @ p(x), p(x).square().sum(), atol=1e-11, rtol=1e-9)


def test_how_much_of_white_noise_the_filter_keeps() -> None:
    x = signal(200_000)
    z = low_bins(0.05, 200_000)
    kept = (FftHighPass(0.05)(x).square().sum() / x.square().sum()).item()
    assert kept == pytest.approx(1 - (2 * z - 1) / 200_000, abs=0.003)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("mean", [0.0, 1e3])
def test_rescaling_is_exact_for_little_that_stays_and_for_any_size(size: float, mean: float) -> None:
    """In float32: the length of what the FFT filter leaves, also beside a mean that it takes away."""
    x = size * (torch.randn(3, 65, generator=torch.Generator().manual_seed(0)) + mean)
    wide = (x / size).double()
    kept = FftHighPass(0.1)(wide).norm(dim=-1) / wide.norm(dim=-1)
    out = L2Rescale(0.1)(x)
    torch.testing.assert_close(
        (out / size).double().norm(dim=-1) / wide.norm(dim=-1), kept, rtol=1e-5, atol=0
    )
