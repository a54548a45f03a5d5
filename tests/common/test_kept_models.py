"""Models that a process builds once and copies, and those that it must build each time."""

import hashlib

import pytest
import torch
from torch import nn

from common import memo
from common.models import MODELS, build
from tests.modules import SMALL


def digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def layers_with_buffers(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model of PyTorch's own layers, one with a tensor that is no buffer."""
    model = nn.Sequential(nn.Linear(*input_shape, 5), nn.BatchNorm1d(5), nn.GELU(), nn.Linear(5, classes))
    model[0].apart = torch.arange(3)
    return model


def with_a_hook(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A layer that gives 1 / (sum of its weights), by a hook that knows this very layer."""
    layer = nn.Linear(*input_shape, classes)
    layer.register_forward_hook(lambda module, x, y: y * 0 + 1 / layer.weight.sum())
    return layer


def with_a_method_of_its_own(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The same, by a function in the layer."""
    layer = nn.Linear(*input_shape, classes)
    layer.forward = lambda x: x.new_ones(len(x), classes) / layer.weight.sum()  # type: ignore[method-assign]
    return layer


class OfAUser(nn.Module):
    """The same, by a function in a place where nobody looks."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, *input_shape))
        self.steps = [lambda x: x.new_ones(len(x), classes) / self.weight.sum()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.steps[0](x)
        return y


@pytest.mark.parametrize("name", [*MODELS, f"{__name__}:layers_with_buffers"])
def test_a_kept_model_comes_out_as_it_was_built(name: str) -> None:
    shape = SMALL.get(name, (6,))
    fresh = build(name, shape, 3, seed=5)
    with memo.keeping():
        changed = build(name, shape, 3, seed=5)
        with torch.no_grad():
            for x in [*changed.parameters(), *changed.buffers()]:
                x += 1
        changed.eval()
        again, other = build(name, shape, 3, seed=5), build(name, shape, 3, seed=6)
    assert again.training and digest(again) == digest(fresh) != digest(other)
    state = fresh.state_dict()
    assert all(torch.equal(x, state[key]) for key, x in again.state_dict().items())


def test_kept_models_share_no_container() -> None:
    """Empty ones are what copying them takes a short way with."""
    with memo.keeping():
        one, two = (build(f"{__name__}:layers_with_buffers", (6,), 3, seed=0) for _ in range(2))
    for ours, theirs in zip(one.modules(), two.modules(), strict=True):
        assert vars(ours).keys() == vars(theirs).keys()
        for name, value in vars(ours).items():
            other = vars(theirs)[name]
            assert type(value) is type(other)
            assert value is not other or not isinstance(value, dict | set | list | torch.Tensor)
    one.register_forward_hook(lambda module, x, y: y * 0)
    assert not two._forward_hooks and torch.any(two(torch.randn(4, 6)))


def test_pytorchs_own_layers_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def builder(input_shape: tuple[int, ...], classes: int) -> nn.Module:
        built.append(classes)
        return layers_with_buffers(input_shape, classes)

    monkeypatch.setitem(MODELS, "counted", builder)
    with memo.keeping():
        for classes in (3, 3, 4, 3):
            build("counted", (6,), classes, seed=0)
    assert built == [3, 4]


@pytest.mark.parametrize("builder", ["with_a_hook", "with_a_method_of_its_own", "OfAUser"])
def test_a_model_that_a_copy_would_change_is_built_each_time(builder: str) -> None:
    with memo.keeping():
        one, two = (build(f"{__name__}:{builder}", (6,), 3, seed=5) for _ in range(2))
    for model, value in ((one, 1.0), (two, 2.0)):
        nn.init.constant_(model.weight, value)  # type: ignore[arg-type]
    assert two(torch.ones(1, 6))[0].tolist() == pytest.approx([1 / 36] * 3)
