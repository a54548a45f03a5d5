"""Algebra on named tensors, and what of a model is trained, carried, sent and loaded."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from common.errors import DataError
from common.params import add, carried, copy_of, fitted, load_into, norm, scale, sub, to_arrays, trainable


class Odd(nn.Module):
    """Tied weights, a frozen layer, BatchNorm, a buffer that is not saved."""

    scratch: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(3, 2).requires_grad_(False)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def two() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return (
        {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor(0.5)},
        {"b": torch.tensor(4.0), "a": torch.tensor([10.0, 0.25])},
    )


def test_trainable_has_each_parameter_with_a_gradient_once_and_in_order() -> None:
    model = Odd()
    assert list(trainable(model)) == ["first.weight", "tied.bias", "norm.weight", "norm.bias"]
    assert trainable(model)["first.weight"] is model.first.weight


def test_carried_has_frozen_parameters_and_persistent_buffers() -> None:
    model = Odd()
    assert set(carried(model)) == {
        "frozen.weight",
        "frozen.bias",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    }
    assert carried(model)["norm.running_mean"] is model.norm.running_mean
    assert carried(model)["frozen.weight"] is model.frozen.weight


def test_trainable_and_carried_are_the_whole_state() -> None:
    model = Odd()
    state = {t.data_ptr() for t in model.state_dict().values()}
    assert {t.data_ptr() for t in (trainable(model) | carried(model)).values()} == state
    assert not set(trainable(model)) & set(carried(model))


def test_algebra_goes_by_name_and_leaves_its_arguments_alone() -> None:
    a, b = two()
    before = copy_of(a), copy_of(b)
    assert {n: x.tolist() for n, x in add(a, b).items()} == {"a": [11.0, -1.75], "b": 4.5}
    assert {n: x.tolist() for n, x in sub(a, b).items()} == {"a": [-9.0, -2.25], "b": -3.5}
    assert {n: x.tolist() for n, x in scale(-2, a).items()} == {"a": [-2.0, 4.0], "b": -1.0}
    for now, then in zip((a, b), before, strict=True):
        assert all(torch.equal(now[name], then[name]) for name in then)


def test_algebra_of_nothing_is_nothing() -> None:
    assert add({}, {}) == sub({}, {}) == scale(2, {}) == copy_of({}) == to_arrays({}) == {}


def test_a_copy_is_cut_off_from_memory_and_graph() -> None:
    p = nn.Parameter(torch.ones(2))
    copied = copy_of({"p": p})["p"]
    copied += 1
    assert p.tolist() == [1, 1]
    assert not copied.requires_grad


def test_arrays_and_back_keep_every_bit_shape_and_type() -> None:
    tensors = {
        "matrix": torch.randn(3, 4),
        "strided": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "turned": torch.randn(3, 4).T,
        "double": torch.tensor([math.pi], dtype=torch.float64),
        "half": torch.tensor([0.1], dtype=torch.float16),
        "counter": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "parameter": nn.Parameter(torch.ones(2)),
    }
    arrays = to_arrays(tensors)
    assert arrays["counter"].shape == () and arrays["counter"].dtype == np.int64
    target = {name: torch.zeros_like(x) for name, x in tensors.items()}
    kept = {name: x.data_ptr() for name, x in target.items()}
    load_into(target, arrays)
    for name, x in tensors.items():
        assert torch.equal(target[name], x), name
        assert target[name].data_ptr() == kept[name]


def test_loading_fills_a_models_own_tensors_although_they_take_gradients() -> None:
    source, target = Odd(), Odd()
    source.norm(torch.randn(4, 2))  # moves the statistics and counts one batch
    for part in (trainable, carried):
        load_into(part(target), to_arrays(part(source)))
    assert target.norm.num_batches_tracked is not None and target.norm.num_batches_tracked.item() == 1
    for name, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], value), name
    assert target.tied.weight is target.first.weight


def test_loading_takes_arrays_that_are_not_contiguous_and_leaves_other_names_alone() -> None:
    target = {"a": torch.zeros(2, 3)}
    load_into(target, {"a": np.arange(6, dtype=np.float32).reshape(3, 2).T, "more": np.ones(9)})
    assert target["a"].tolist() == [[0, 2, 4], [1, 3, 5]]


def test_a_missing_name_is_not_passed_over() -> None:
    with pytest.raises(KeyError, match="a"):
        load_into({"a": torch.zeros(1)}, {})


def test_norm_is_over_all_arrays_together() -> None:
    assert norm({"a": np.array([[3.0]]), "b": np.array(4.0)}) == 5.0
    assert norm({"n": np.array([3, 4])}) == 5.0
    assert norm({}) == norm({"empty": np.zeros((0, 2))}) == 0.0


def test_norm_accumulates_in_float64() -> None:
    assert norm({"a": np.full(4, 1e30, dtype=np.float32)}) == pytest.approx(2e30, rel=1e-6)
    one_and_many = {"a": np.ones(1, np.float32), "b": np.full(10**6, 1e-4, np.float32)}
    assert norm(one_and_many) == pytest.approx(math.sqrt(1.01), rel=1e-9)


def test_norm_shows_what_is_not_finite() -> None:
    assert norm({"a": np.array([np.inf], np.float32)}) == math.inf
    assert math.isnan(norm({"a": np.array([np.nan, 1.0])}))


def test_saved_tensors_take_the_order_of_the_models_own() -> None:
    own = {"b": np.zeros((2, 1), np.float32), "a": np.zeros((), np.int64)}
    saved = {"a": np.array(3), "b": np.ones((2, 1), np.float32)}
    back = fitted(saved, own, "the file")
    assert list(back) == ["b", "a"] and back["a"] == 3
    for other, sentence in (
        ({**saved, "c": np.zeros(1)}, r'"c" is float64 \(1,\), not absent'),
        ({"a": saved["a"]}, r'"b" is absent, not float32 \(2, 1\)'),
        ({**saved, "b": np.ones((1, 2), np.float32)}, r'"b" is float32 \(1, 2\), not float32 \(2, 1\)'),
        ({**saved, "a": np.array(3.0)}, r'"a" is float64 \(\), not int64 \(\)'),
    ):
        with pytest.raises(DataError, match=f"^the file does not fit this run's model: {sentence}$"):
            fitted(other, own, "the file")
