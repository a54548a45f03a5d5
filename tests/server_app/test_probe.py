"""Features in front of the head, and the likeness of models that are loaded one after the other."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from common import models
from common.batches import to_tensors
from common.datasets import Examples
from common.errors import ModelError
from common.models import Head, resolve_head
from common.params import Arrays, carried, copy_of, to_arrays, trainable
from server_app.probe import features, make_probe
from strategies.drift.cka import linear_cka
from tests.federation import normed_net, small_net
from tests.modules import SMALL

CPU = torch.device("cpu")


def examples(shape: tuple[int, ...], rows: int = 300, classes: int = 4) -> Examples:
    draw = np.random.default_rng(0)
    return Examples(draw.normal(size=(rows, *shape)).astype(np.float32), np.arange(rows) % classes, classes)


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_features_and_head_give_the_logits(name: str) -> None:
    model = models.build(name, SMALL[name], 4, seed=0).eval()
    head = resolve_head(model, 4)
    x = torch.rand(5, *SMALL[name], generator=torch.Generator().manual_seed(0)) * 3
    w = dict(model.named_parameters())
    assert head.bias is not None
    torch.testing.assert_close(features(model, head, x) @ w[head.weight].T + w[head.bias], model(x))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_convolution_as_head_has_its_positions_as_units() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert features(model, Head("1.weight", "1.bias", (4, 3, 1, 1)), torch.zeros(2, 1, 5, 5)).shape == (2, 75)


class Uncalled(nn.Module):
    """Uses its head's weight without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.fc.weight.T


class Bare(nn.Module):
    """Its head is a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w.T


def uncalled_net(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """For runs that name it."""
    return Uncalled()


@pytest.mark.parametrize(("build", "weight"), [(Uncalled, "fc.weight"), (Bare, "w")])
def test_a_head_that_is_no_layer_is_refused_by_name(build: Callable[[], nn.Module], weight: str) -> None:
    with pytest.raises(ModelError, match=f'layer of its own; "{weight}"'):
        make_probe(build(), Head(weight, None, (4, 6)), examples((6,)), 10, CPU)


def trained(
    seed: int, build: Callable[[tuple[int, ...], int], nn.Module]
) -> tuple[Arrays, Arrays, nn.Module]:
    torch.manual_seed(seed)
    model = build((6,), 4)
    return to_arrays(copy_of(trainable(model))), to_arrays(copy_of(carried(model))), model


def test_models_are_compared_on_evenly_spread_rows() -> None:
    frame = small_net((6,), 4)
    before = to_arrays(copy_of(trainable(frame)))
    head, data = resolve_head(frame, 4), examples((6,))
    probe = make_probe(frame, head, data, rows=40, device=CPU)
    rows = np.linspace(0, 299, 40).astype(int)
    np.testing.assert_array_equal(probe.examples.x, data.x[rows])
    (a, none, first), (b, _, second) = trained(1, small_net), trained(2, small_net)
    x, _ = to_tensors(data, rows, CPU)
    expected = linear_cka(*(features(model, head, x).numpy() for model in (first, second)))
    assert probe.cka([(a, none), (b, none)]) == pytest.approx(expected)
    assert probe.cka([(a, none), (a, none)]) == pytest.approx(1)
    assert probe.cka([(a, none)]) is None
    assert all((x == before[name]).all() for name, x in to_arrays(trainable(frame)).items())


def test_more_rows_than_there_are_take_all() -> None:
    frame = small_net((6,), 4)
    probe = make_probe(frame, resolve_head(frame, 4), examples((6,), rows=300), 1000, CPU)
    assert len(probe.examples) == 300
    (a, none, _), (b, _, _) = trained(1, small_net), trained(2, small_net)
    assert 0 < (probe.cka([(a, none), (b, none)]) or 0) < 1  # in two batches


def test_buffers_are_part_of_a_model() -> None:
    frame = normed_net((6,), 4)
    probe = make_probe(frame, resolve_head(frame, 4), examples((6,)), 50, CPU)
    a, buffers, _ = trained(1, normed_net)
    shifted = {**buffers, "1.running_mean": np.linspace(-1, 1, 48).astype(np.float32)}
    assert (probe.cka([(a, buffers), (a, shifted)]) or 0) < 0.99


def test_a_model_that_gives_nan_is_left_out() -> None:
    frame = small_net((6,), 4)
    probe = make_probe(frame, resolve_head(frame, 4), examples((6,)), 50, CPU)
    a, none, _ = trained(1, small_net)
    broken = {name: np.full_like(x, np.float32("nan")) for name, x in a.items()}
    assert probe.cka([(a, none), (broken, none)]) is None
    assert probe.cka([(a, none), (broken, none), (a, none)]) == pytest.approx(1)
