"""Filters on named tensors: grouping, dtypes, layouts, orders of axes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from common.filters import FftHighPass, Filter, Gd, L2Rescale, LapD, RandomBins, keep, lift, low_bins
from common.filters.filter import Identity, KeepMean, RowMean
from common.filters.order import axes, flatten, unflatten
from common.params import Params
from tests.common.filters.oracles import dense, ratio_for, signal

ANY: list[Filter] = [FftHighPass(0.3), LapD(0.3), Gd(0.3), L2Rescale(0.3), RandomBins(0.3, 0, "w")]


def on_all(filter_: Filter, params: Params, order: str = "0123", seed: int = 0) -> Params:
    return lift(filter_, order, seed)(params)


def one_by_one(params: Params, ratio: float) -> Params:
    """What ``lift`` promises of the FFT filter, one tensor after the other."""
    out = {}
    for name, t in params.items():
        removed = low_bins(ratio, t.numel())
        if removed == 0:
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


@pytest.mark.parametrize("ratio", [0.05, 0.3, 0.9])
def test_lifted_in_groups_equals_one_by_one(ratio: float) -> None:
    params = some_params()
    out, expected = on_all(FftHighPass(ratio), params), one_by_one(params, ratio)
    assert list(out) == list(params)
    for name, want in expected.items():
        assert (out[name].dtype, out[name].shape) == (want.dtype, want.shape)
        torch.testing.assert_close(out[name], want, atol=1e-6, rtol=1e-6 if want.itemsize > 2 else 8e-3)


@pytest.mark.parametrize("filter_", ANY)
def test_in_a_group_or_alone_is_the_same(filter_: Filter) -> None:
    params = {name: signal(length, i).float() for i, (name, length) in enumerate(GROUPS)}
    together = on_all(filter_, params)
    for name, g in params.items():
        torch.testing.assert_close(together[name], on_all(filter_, {name: g})[name], atol=2e-6, rtol=0)


GROUPS = [
    ("a", 432),
    ("b", 432),
    ("c", 2304),
    ("d", 4608),
    ("e", 4608),
    ("f", 9216),
    ("g", 4099),
    ("h", 36864),
]
GROUPS += [("i", 18432), ("j", 18432), ("k", 64), ("l", 640)]


@pytest.mark.parametrize("filter_", [FftHighPass(0.05), LapD(0.05), Gd(0.05)])
def test_all_of_a_models_lengths_are_exact_to_a_millionth(filter_: Filter) -> None:
    params = {name: signal(length, i).float() for i, (name, length) in enumerate(GROUPS)}
    for name, out in on_all(filter_, params).items():
        assert out.dtype == torch.float32 and out.is_contiguous()
        expected = filter_(params[name].double())
        torch.testing.assert_close(out.double(), expected, atol=3e-6, rtol=0)


def test_what_has_no_filter_is_the_same_object() -> None:
    params = some_params()
    out = lift({"conv1": FftHighPass(0.05), "bias1": FftHighPass(0.05), "bias2": Identity()})(params)
    assert [name for name in params if out[name] is not params[name]] == ["conv1"]
    assert keep(params) is params


def test_gradients_that_are_missing_are_not_missed() -> None:
    out = lift({"a": FftHighPass(0.3), "b": FftHighPass(0.3)})({"b": torch.ones(40)})
    assert list(out) == ["b"] and out["b"].abs().max() < 1e-6


def test_sparse_whole_and_complex_gradients_are_left_alone() -> None:
    params = {
        "sparse": torch.sparse_coo_tensor(
            torch.tensor([[0, 3]]), torch.ones(2, 8), (10, 8), check_invariants=True
        ),
        "whole": torch.ones(64, dtype=torch.int64),
        "complex": torch.ones(64, dtype=torch.complex64),
    }
    out = on_all(FftHighPass(0.3), params)
    assert all(out[name] is params[name] for name in params)


@pytest.mark.parametrize("filter_", [*ANY, RowMean(9), KeepMean(LapD(0.3))])
@pytest.mark.parametrize("order", ["0123", "1023", "random"])
def test_nothing_is_changed_in_place_and_results_share_no_memory(filter_: Filter, order: str) -> None:
    params = {k: t for k, t in some_params().items() if t.numel() in (216, 0)}
    before = {name: t.clone() for name, t in params.items()}
    out = on_all(filter_, params, order)
    assert all(torch.equal(params[name], before[name]) for name in params)
    kept = out["conv2"].clone()
    out["conv1"].zero_()  # as clipping in place does with a gradient
    assert torch.equal(out["conv2"], kept)
    assert all(torch.equal(params[name], before[name]) for name in params)


@pytest.mark.parametrize("filter_", ANY)
@pytest.mark.parametrize("order", ["0123", "1023", "3210", "random"])
def test_memory_layout_makes_no_difference(filter_: Filter, order: str) -> None:
    g = torch.randn(8, 4, 3, 3)
    expected = on_all(filter_, {"g": g}, order)["g"]
    last = on_all(filter_, {"g": g.to(memory_format=torch.channels_last)}, order)["g"]
    assert torch.equal(last, expected)
    turned = torch.randn(9, 12)
    assert torch.equal(
        on_all(filter_, {"g": turned.T}, order)["g"],
        on_all(filter_, {"g": turned.T.contiguous()}, order)["g"],
    )


@pytest.mark.parametrize("filter_", ANY)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_filtered_in_float32(filter_: Filter, dtype: torch.dtype) -> None:
    g = torch.randn(50, 50).to(dtype)
    out = on_all(filter_, {"g": g})["g"]
    assert out.dtype == dtype
    assert torch.equal(out, on_all(filter_, {"g": g.float()})["g"].to(dtype))


def test_float64_is_kept_to_its_last_digits() -> None:
    g = signal(301)
    out = on_all(FftHighPass(0.1), {"g": g})["g"].numpy()
    np.testing.assert_allclose(out, dense(301, low_bins(0.1, 301)) @ g.numpy(), atol=1e-12)


def test_tensors_of_one_length_on_several_devices_stay_where_they_are() -> None:
    devices = ["cpu", "cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    params = {str(i): torch.randn(40, 5).to(device) for i, device in enumerate(devices)}
    out = on_all(FftHighPass(0.2), params)
    for name, t in params.items():
        assert out[name].device == t.device
        torch.testing.assert_close(out[name].cpu(), one_by_one({"g": t.cpu()}, 0.2)["g"], atol=1e-5, rtol=0)


def test_a_parameter_that_takes_a_gradient_gives_one_without() -> None:
    p = torch.nn.Parameter(torch.randn(50))
    assert not on_all(FftHighPass(0.2), {"p": p})["p"].requires_grad


def test_no_parameters_are_fine() -> None:
    assert lift({})({}) == {} == lift({"a": FftHighPass(0.2)})({})


# Orders


@pytest.mark.parametrize(
    ("order", "expected"), [("01", [[-0.5, 0.5], [-0.5, 0.5]]), ("10", [[-1.0, -1.0], [1.0, 1.0]])]
)
def test_a_matrix_row_by_row_and_column_by_column_by_hand(order: str, expected: list[list[float]]) -> None:
    g = {"g": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}
    out = on_all(FftHighPass(ratio_for(2, 4)), g, order)["g"]
    torch.testing.assert_close(out, torch.tensor(expected))
    assert out.is_contiguous()


@pytest.mark.parametrize(
    ("order", "ndim", "expected"),
    [
        ("0123", 4, (0, 1, 2, 3)),
        ("0123", 2, (0, 1)),
        ("0123", 5, (0, 1, 2, 3, 4)),
        ("1023", 4, (1, 0, 2, 3)),
        ("1023", 2, (1, 0)),
        ("1023", 1, (0,)),
        ("1023", 0, ()),
        ("10", 4, (1, 0, 2, 3)),
        ("2301", 3, (2, 0, 1)),
    ],
)
def test_axes_of_other_tensors(order: str, ndim: int, expected: tuple[int, ...]) -> None:
    assert axes(order, ndim) == expected


SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@given(shape=SHAPES, order=st.permutations("0123").map("".join), seed=st.integers(0, 99))
def test_a_signal_is_read_in_the_order_of_its_axes_and_put_back(
    shape: tuple[int, ...], order: str, seed: int
) -> None:
    t = signal(math.prod(shape), seed).reshape(shape)
    flat = flatten(t, order, 0, "w")
    wanted = [int(d) for d in order if int(d) < len(shape)]
    assert torch.equal(flat, torch.from_numpy(t.numpy().transpose(wanted).copy()).reshape(-1))
    assert torch.equal(unflatten(flat, t, order, 0, "w"), t)


def shuffled(t: Tensor, seed: int, name: str) -> Tensor:
    return flatten(t, "random", seed, name)


def test_a_random_order_belongs_to_a_seed_and_a_tensor_and_is_undone() -> None:
    t = torch.arange(600.0).reshape(20, 30)
    first = shuffled(t, 0, "a")
    assert torch.equal(first, shuffled(t, 0, "a")) and torch.equal(first.sort().values, t.flatten())
    for seed, name in ((1, "a"), (0, "b")):
        assert not torch.equal(first, shuffled(t, seed, name))
    assert torch.equal(unflatten(first, t, "random", 0, "a"), t)


def test_a_random_order_turns_the_filter_around_with_it() -> None:
    t = signal(600).reshape(20, 30)
    out = on_all(FftHighPass(0.2), {"a": t}, "random", seed=4)["a"]
    expected = FftHighPass(0.2)(shuffled(t, 4, "a"))
    torch.testing.assert_close(shuffled(out, 4, "a"), expected, atol=1e-14, rtol=0)


# Small filters


def test_row_means_by_hand() -> None:
    g = {"g": torch.tensor([[1.0, 3.0], [10.0, 20.0]])}
    assert on_all(RowMean(2), g)["g"].tolist() == [[-1.0, 1.0], [-5.0, 5.0]]
    assert not RowMean(1).changes(8) and not RowMean(0).changes(0)


@given(rows=st.integers(1, 9), width=st.integers(2, 9), seed=st.integers(0, 99))
def test_row_means_are_gone_and_that_is_a_projection(rows: int, width: int, seed: int) -> None:
    x, y, p = signal(rows * width, seed), signal(rows * width, seed + 1), RowMean(width)
    expected = x - torch.stack([row.mean() for row in x.split(width)]).repeat_interleave(width)
    torch.testing.assert_close(p(x), expected, atol=1e-14, rtol=0)
    torch.testing.assert_close(p(p(x)), p(x), atol=1e-14, rtol=0)
    torch.testing.assert_close(p(x) @ y, x @ p(y), atol=1e-12, rtol=0)


@settings(max_examples=30)
@given(length=st.integers(38, 300), seed=st.integers(0, 99), i=st.integers(0, 2))
def test_a_kept_mean_is_the_only_difference(length: int, seed: int, i: int) -> None:
    inner = [LapD(0.05), Gd(0.05), RowMean(length)][i]
    x = signal(length, seed) + 3
    out = KeepMean(inner)(x)
    torch.testing.assert_close(out.mean(), x.mean(), atol=1e-12, rtol=0)
    difference = out - inner(x)
    torch.testing.assert_close(difference, difference.mean().expand(length), atol=1e-12, rtol=0)
    assert KeepMean(inner).changes(5) == inner.changes(5)
