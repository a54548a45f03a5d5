"""LAP-D and GD against worked examples and a plain loop; their widths and ends."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.filters import Gd, LapD, low_bins
from common.filters.smoothing import box, gaussian, gaussian_sigma, moving_average_width
from common.filters.toeplitz import less_average
from tests.common.filters import oracles
from tests.common.filters.oracles import signal

Q = [0.25, 0.5, 0.25]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([1 / 3] * 3, [-0.5, -1 / 3, -2 / 3, -4 / 3, 4]),  # zeros counted in would give 0 ... 8
        (Q, [-1 / 3, -1 / 4, -1 / 2, -1, 8 / 3]),
    ],
)
def test_five_values_by_hand(weights: list[float], expected: list[float]) -> None:
    x = [1.0, 2.0, 4.0, 8.0, 16.0]
    assert oracles.less_average(x, weights) == pytest.approx(expected)
    (got,) = less_average([torch.tensor(x, dtype=torch.float64)], tuple(weights))
    assert got.tolist() == pytest.approx(expected, abs=1e-14)


def test_lap_d_of_five_values_by_hand() -> None:
    x = torch.tensor([1.0, 2, 4, 8, 16], dtype=torch.float64)
    expected = [-0.5, -1 / 3, -2 / 3, -4 / 3, 4]
    assert LapD(0.9, kernel=3)(x).tolist() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize(
    ("ratio", "width"), [(0.05, 17), (0.01, 89), (0.02, 45), (0.1, 9), (0.5, 3), (0.9, 3)]
)
def test_the_moving_average_is_the_nearest_odd_number(ratio: float, width: int) -> None:
    assert moving_average_width(ratio) == width
    assert width == 3 or abs(width - 0.886 / ratio) <= 1


def test_the_gaussian_of_five_percent() -> None:
    assert gaussian_sigma(0.05) == pytest.approx(5.3)
    weights = gaussian(gaussian_sigma(0.05))
    assert len(weights) == 33 and math.fsum(weights) == pytest.approx(1, abs=1e-15)
    assert weights[16] / weights[16 + 5] == pytest.approx(math.exp(12.5 / 5.3**2))
    assert weights == weights[::-1] and len(box(17)) == 17


@pytest.mark.parametrize("filter_", [LapD(0.05), Gd(0.05)])
def test_half_the_power_of_the_average_is_left_at_the_cut_off(filter_: LapD | Gd) -> None:
    n = torch.arange(8000, dtype=torch.float64)
    wave = torch.cos(2 * math.pi * 0.025 * n)
    average = (wave - filter_(wave))[100:-100]
    assert average.abs().max().item() ** 2 == pytest.approx(0.5, abs=0.04)


def lengths() -> st.SearchStrategy[int]:
    return st.integers(1, 400)


@settings(max_examples=150)
@given(length=lengths(), radius=st.integers(1, 20), seed=st.integers(0, 999))
@example(length=63, radius=16, seed=0)
@example(length=64, radius=16, seed=0)
@example(length=65, radius=16, seed=0)
@example(length=95, radius=16, seed=0)
@example(length=96, radius=16, seed=0)
@example(length=97, radius=16, seed=0)
@example(length=38, radius=8, seed=0)
def test_any_symmetric_average_is_that_of_the_plain_loop(length: int, radius: int, seed: int) -> None:
    half = (signal(radius + 1, seed).abs() + 0.1).tolist()
    weights = [*half[::-1], *half[1:]]
    weights = [w / math.fsum(weights) for w in weights]
    x = signal(length, seed + 1)
    got = less_average([x, 2 * x], tuple(weights))
    expected = torch.tensor(oracles.less_average(x.tolist(), weights), dtype=torch.float64)
    torch.testing.assert_close(got[0], expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(got[1], 2 * expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("radius", [127, 128, 129, 200, 700])
@pytest.mark.parametrize("length", [3, 300, 1009])
def test_wide_averages_too(length: int, radius: int) -> None:
    weights = list(gaussian(radius / 3 - 0.01))
    assert len(weights) == 2 * radius + 1
    x = signal(length)
    expected = torch.tensor(oracles.less_average(x.tolist(), weights), dtype=torch.float64)
    torch.testing.assert_close(less_average([x], tuple(weights))[0], expected, atol=1e-11, rtol=0)


@given(length=lengths(), percent=st.integers(1, 60), seed=st.integers(0, 999))
@example(length=37, percent=5, seed=0)
@example(length=38, percent=5, seed=0)
@example(length=1, percent=50, seed=0)
def test_the_filters_are_the_loop_with_their_weights(length: int, percent: int, seed: int) -> None:
    ratio = percent / 100
    x = signal(length, seed)
    width = min(moving_average_width(ratio), max(3, length - 1 + length % 2))
    for filter_, weights in [
        (LapD(ratio), [1 / width] * width),
        (Gd(ratio), list(gaussian(gaussian_sigma(ratio)))),
    ]:
        assert filter_.changes(length) == (low_bins(ratio, length) > 0)
        expected = torch.tensor(oracles.less_average(x.tolist(), weights), dtype=torch.float64)
        torch.testing.assert_close(filter_(x), expected, atol=1e-12, rtol=0)


def test_at_five_percent_the_same_tensors_change_as_by_the_fft() -> None:
    for filter_ in (LapD(0.05), Gd(0.05), LapD(0.05, kernel=3), Gd(0.05, sigma=1.0)):
        assert [n for n in range(1, 60) if filter_.changes(n)] == list(range(38, 60))


@pytest.mark.parametrize(
    ("length", "width"), [(3, 3), (4, 3), (5, 5), (16, 15), (17, 17), (18, 17), (200, 17)]
)
def test_the_moving_average_shrinks_to_the_signal(length: int, width: int) -> None:
    x = signal(length)
    expected = torch.tensor(oracles.less_average(x.tolist(), [1 / width] * width), dtype=torch.float64)
    torch.testing.assert_close(LapD(0.05)(x), expected, atol=1e-13, rtol=0)


@pytest.mark.parametrize("length", [38, 39, 101, 1000, 4099, 9216])
@pytest.mark.parametrize(
    "filter_", [LapD(0.05), Gd(0.05), LapD(0.05, 3), Gd(0.05, 0.7), LapD(0.01), Gd(0.001)]
)
def test_a_constant_becomes_zero_also_at_the_ends(filter_: LapD | Gd, length: int) -> None:
    for dtype, limit in ((torch.float32, 2e-5), (torch.float64, 1e-12)):
        assert filter_(torch.full((length,), 7.0, dtype=dtype)).abs().max() < limit


@pytest.mark.parametrize("length", [38, 97, 2304, 4099, 36864])
@pytest.mark.parametrize("filter_", [LapD(0.05), Gd(0.05)])
def test_float32_is_right_to_a_millionth(filter_: LapD | Gd, length: int) -> None:
    x = signal(length)
    torch.testing.assert_close(filter_(x.float()).double(), filter_(x), atol=2e-6, rtol=0)


@given(length=st.integers(38, 300), seed=st.integers(0, 999), a=st.floats(-5, 5))
def test_they_are_linear(length: int, seed: int, a: float) -> None:
    x, y = signal(length, seed), signal(length, seed + 1)
    for filter_ in (LapD(0.05), Gd(0.05)):
        torch.testing.assert_close(filter_(a * x + y), a * filter_(x) + filter_(y), atol=1e-12, rtol=0)


def test_they_commute_with_reversal() -> None:
    x = signal(211)
    for filter_ in (LapD(0.05), Gd(0.05)):
        torch.testing.assert_close(filter_(x.flip(0)), filter_(x).flip(0), atol=1e-12, rtol=0)


def test_how_much_of_white_noise_is_kept() -> None:
    # Inside the signal it is the sum of the squared coefficients, 1 - 2 w_0 + sum of w^2.
    for filter_, kept in ((LapD(0.05), 1 - 1 / 17), (Gd(0.05), 0.903)):
        x = signal(400_000)
        assert filter_(x).square().mean().item() == pytest.approx(kept, abs=0.01)


def test_rows_may_lie_anywhere_in_memory_and_stay_as_they_are() -> None:
    table = signal(3000).reshape(300, 10)
    rows = table.T[::2]
    before = rows.clone()
    for filter_ in (LapD(0.05), Gd(0.05)):
        out = filter_(rows)
        for row, filtered in zip(rows, out, strict=True):
            torch.testing.assert_close(filtered, filter_(row.clone()), atol=1e-14, rtol=0)
    assert torch.equal(rows, before)


@pytest.mark.parametrize("length", [38, 63, 64, 65, 1000])
@pytest.mark.parametrize("filter_", [LapD(0.05), Gd(0.05), LapD(0.05, 33), Gd(0.05, 16 / 3)])
def test_what_is_not_finite_stays_in_its_own_signal(filter_: LapD | Gd, length: int) -> None:
    bad, good = torch.full((length,), math.inf).double(), signal(length)
    out = filter_.together([bad, good, bad])
    torch.testing.assert_close(out[1], filter_(good), atol=1e-14, rtol=0)
    assert not out[0].isfinite().any()


@pytest.mark.parametrize("filter_", [LapD(0.05), Gd(0.05)])
def test_long_signals_are_filtered_where_they_lie_just_as_short_ones(filter_: LapD | Gd) -> None:
    for length in (1 << 15, (1 << 15) + 1, (1 << 15) + 31, 40_000):
        x = signal(length + 2)[1:-1]
        (alone,) = filter_.together([x])
        # Far from its ends, a signal's filtering does not depend on how long it is.
        middle = length // 2
        torch.testing.assert_close(filter_(x[:middle])[:-50], alone[: middle - 50], atol=1e-13, rtol=0)
        torch.testing.assert_close(filter_(x[middle:])[50:], alone[middle + 50 :], atol=1e-13, rtol=0)
