"""The spectral filter against worked examples, a dense DFT and its defining properties; then ``lift``."""

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from common.filters import FILTERS, FftHighPass, build, eligible, filtered_names, keep, lift, low_bins
from common.params import Params, ParamsFilter


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors are tiny here: a second thread would only wait, and burn a shared machine's time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


LENGTHS = st.integers(1, 70)
RATIOS = st.integers(0, 99).map(lambda percent: percent / 100)


def ratio_for(removed: int, length: int) -> float:
    """A ratio at which ``low_bins`` is ``removed``: half a bin above it."""
    return (removed + 0.5) / (length // 2 + 1)


def filtered(values: list[float], removed: int) -> list[float]:
    filter_ = FftHighPass(ratio_for(removed, len(values)))
    assert low_bins(filter_.ratio, len(values)) == removed
    output: list[float] = filter_(torch.tensor(values, dtype=torch.float64)).tolist()
    return output


def dense(length: int, removed: int) -> np.ndarray:
    """The filter as a matrix, by the definition: real waves of frequency below ``removed`` are taken out."""
    n = np.arange(length)
    low = np.zeros((length, length))
    for k in range(removed):
        wave = np.exp(2j * np.pi * k * n / length)
        both_signs = 1 if k == 0 or 2 * k == length else 2
        low += both_signs * np.real(np.outer(wave, wave.conj())) / length
    return np.eye(length) - low


def signal(length: int, seed: int) -> Tensor:
    return torch.randn(length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


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
    shorter = {"g": torch.ones(37)}
    assert build("fft", 0.05, 1)(shorter)["g"] is shorter["g"]
    assert build("fft", 0.05, 1)({"g": torch.ones(38)})["g"].abs().max() < 1e-6
    assert [n for n in range(1, 60) if FftHighPass(0.05).changes(n)] == list(range(38, 60))


@pytest.mark.parametrize("length", [5, 38, 39, 101])
def test_a_signal_keeps_its_length(length: int) -> None:
    assert FftHighPass(0.5)(torch.ones(length)).shape == (length,)


def test_a_matrix_is_read_row_by_row() -> None:
    matrix = {"g": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}
    out = build("fft", ratio_for(2, 4), 1)(matrix)["g"]
    torch.testing.assert_close(out, torch.tensor([[-0.5, 0.5], [-0.5, 0.5]]))


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
        FftHighPass(ratio)


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


def by_masking(rows: Tensor, removed: int) -> Tensor:
    spectrum = torch.fft.rfft(rows.double())
    spectrum[..., :removed] = 0
    return torch.fft.irfft(spectrum, n=rows.shape[-1])


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
def test_long_float32_is_exact_to_a_millionth_and_as_good_in_groups(length: int) -> None:
    params = {name: signal(length, seed).float() for seed, name in enumerate("abc")}
    out = lift(FftHighPass(0.05))(params)
    for name, g in params.items():
        assert out[name].dtype == torch.float32 and out[name].is_contiguous()
        torch.testing.assert_close(
            out[name].double(), by_masking(g, low_bins(0.05, length)), atol=3e-6, rtol=0
        )


# lift


def one_by_one(params: Params, ratio: float, min_ndim: int = 1) -> Params:
    """What ``lift`` promises, one tensor after the other."""
    out = {}
    for name, t in params.items():
        removed = low_bins(ratio, t.numel())
        if t.ndim < min_ndim or removed == 0:
            out[name] = t
            continue
        flat = t.contiguous().flatten()
        spectrum = torch.fft.rfft(flat if t.dtype == torch.float64 else flat.float())
        spectrum[:removed] = 0
        out[name] = torch.fft.irfft(spectrum, n=t.numel()).to(t.dtype).reshape(t.shape)
    return out


def some_params() -> Params:
    g = torch.Generator().manual_seed(3)
    return {
        "conv1": torch.randn(8, 3, 3, 3, generator=g),
        "bias1": torch.randn(8, generator=g),
        "conv2": torch.randn(3, 8, 3, 3, generator=g),  # as long as conv1
        "double": torch.randn(216, dtype=torch.float64, generator=g),  # as long, of another type
        "half": torch.randn(216, generator=g).half(),
        "brain": torch.randn(6, 36, generator=g).bfloat16(),
        "odd": torch.randn(7, 31, generator=g),
        "bias2": torch.randn(64, generator=g),
        "one": torch.randn((), generator=g),
        "none": torch.zeros(0, 4),
    }


@pytest.mark.parametrize("min_ndim", [0, 1, 2, 3])
@pytest.mark.parametrize("ratio", [0.05, 0.3, 0.9])
def test_lifted_in_groups_equals_one_by_one(ratio: float, min_ndim: int) -> None:
    params = some_params()
    out, expected = build("fft", ratio, min_ndim)(params), one_by_one(params, ratio, min_ndim)
    assert list(out) == list(params)
    for name, want in expected.items():
        assert (out[name].dtype, out[name].shape) == (want.dtype, want.shape)
        torch.testing.assert_close(out[name], want, atol=1e-6, rtol=1e-6 if want.itemsize > 2 else 8e-3)


def test_what_does_not_change_is_the_same_object() -> None:
    params = some_params()
    out = lift(FftHighPass(0.05), 2)(params)
    assert {name for name in params if out[name] is params[name]} == {
        "bias1",
        "double",
        "half",
        "bias2",
        "one",
        "none",
    }


def test_nothing_is_changed_in_place() -> None:
    params = some_params()
    before = {name: t.clone() for name, t in params.items()}
    lift(FftHighPass(0.3))(params)
    assert all(torch.equal(params[name], before[name]) for name in params)


def test_filtered_tensors_have_memory_of_their_own() -> None:
    params = some_params()
    out = lift(FftHighPass(0.3))(params)
    kept = out["conv2"].clone()
    out["conv1"].zero_()  # as clipping in place does with a gradient
    assert torch.equal(out["conv2"], kept)


def test_memory_layout_makes_no_difference() -> None:
    g = torch.randn(8, 4, 3, 3)
    on_params = lift(FftHighPass(0.2))
    expected = on_params({"g": g})["g"]
    assert torch.equal(on_params({"g": g.to(memory_format=torch.channels_last)})["g"], expected)
    turned = torch.randn(9, 12)
    assert torch.equal(on_params({"g": turned.T})["g"], on_params({"g": turned.T.contiguous()})["g"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_filtered_in_float32(dtype: torch.dtype) -> None:
    g = torch.randn(50, 50).to(dtype)
    on_params = lift(FftHighPass(0.2))
    out = on_params({"g": g})["g"]
    assert out.dtype == dtype
    assert torch.equal(out, on_params({"g": g.float()})["g"].to(dtype))


def test_float64_is_kept_to_its_last_digits() -> None:
    g = signal(301, 0)
    out = lift(FftHighPass(0.1))({"g": g})["g"].numpy()
    np.testing.assert_allclose(out, dense(301, low_bins(0.1, 301)) @ g.numpy(), atol=1e-12)


def test_tensors_of_one_length_on_several_devices_stay_where_they_are() -> None:
    devices = ["cpu", "cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    params = {str(i): torch.randn(40, 5).to(device) for i, device in enumerate(devices)}
    out = lift(FftHighPass(0.2))(params)
    for name, t in params.items():
        assert out[name].device == t.device
        torch.testing.assert_close(out[name].cpu(), one_by_one({"g": t.cpu()}, 0.2)["g"], atol=1e-5, rtol=0)


def test_a_parameter_that_takes_a_gradient_gives_one_without() -> None:
    p = torch.nn.Parameter(torch.randn(50))
    assert not lift(FftHighPass(0.2))({"p": p})["p"].requires_grad


def test_no_parameters_are_fine() -> None:
    assert lift(FftHighPass(0.2))({}) == {}


@settings(max_examples=30)
@given(
    shapes=st.dictionaries(
        st.sampled_from("abcdefgh"), st.lists(st.integers(1, 6), max_size=4).map(tuple), max_size=6
    ),
    ratio=RATIOS,
    min_ndim=st.integers(0, 4),
)
def test_filtered_names_are_those_that_are_filtered(
    shapes: dict[str, tuple[int, ...]], ratio: float, min_ndim: int
) -> None:
    params = {name: torch.ones(shape) for name, shape in shapes.items()}
    out = build("fft", ratio, min_ndim)(params)
    changed = [name for name in params if out[name] is not params[name]]
    assert filtered_names("fft", ratio, min_ndim, shapes) == changed


# By name


def test_filters_by_name() -> None:
    assert set(FILTERS) == {"none", "fft"}
    assert FILTERS["none"](0.05) is None
    assert FILTERS["fft"](0.05) == FftHighPass(0.05)


@pytest.mark.parametrize(("name", "ratio"), [("none", 0.05), ("none", 0.0), ("fft", 0.0)])
def test_no_filter_and_ratio_0_are_the_same_identity(name: str, ratio: float) -> None:
    on_params: ParamsFilter = build(name, ratio, 1)
    params = some_params()
    assert on_params is keep
    assert on_params(params) is params
    assert filtered_names(name, ratio, 1, {n: tuple(t.shape) for n, t in params.items()}) == []


def test_names_at_the_default_ratio() -> None:
    shapes = {"weight": (10, 64), "bias": (10,), "wide": (64,), "scalar": ()}
    assert filtered_names("fft", 0.05, 1, shapes) == ["weight", "wide"]
    assert filtered_names("fft", 0.05, 2, shapes) == ["weight"]
    assert eligible(shapes, FftHighPass(0.5), 0) == ["weight", "bias", "wide"]
