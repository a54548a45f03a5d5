"""Filters in a training loop of one's own: in place on gradients, and around an optimizer."""

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau, StepLR

from common.errors import ConfigError
from common.filters import FilterSettings, build, low_bins
from common.gradients import FilteredOptimizer, filter_gradients
from common.params import trainable
from tests.common.filters.oracles import signal

ROOT = Path(__file__).parents[2]


def net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 10))


def loss_of(model: nn.Module) -> Tensor:
    x = torch.randn(16, 12, generator=torch.Generator().manual_seed(1))
    return nn.functional.cross_entropy(model(x), torch.arange(16) % 10)


def backward(model: nn.Module) -> dict[str, Tensor]:
    model.zero_grad()
    loss_of(model).backward()
    return {name: p.grad.clone() for name, p in trainable(model).items() if p.grad is not None}


def low_band(model: nn.Module) -> list[Tensor]:
    """The bins that a filter of ratio 0.1 keeps where they are."""
    return [torch.fft.rfft(p.detach().flatten())[: low_bins(0.1, p.numel())] for p in model.parameters()]


@pytest.mark.parametrize("kind", ["fft", "lap-d", "gd", "row-mean", "none"])
def test_gradients_are_filtered_in_place(kind: str) -> None:
    model = net()
    before = backward(model)
    places = [p.grad for p in model.parameters()]
    filter_gradients(model, kind, 0.1)
    expected = build(FilterSettings(kind, 0.1), model)(before)
    for (name, p), place in zip(trainable(model).items(), places, strict=True):
        assert p.grad is place and not place.requires_grad
        assert torch.equal(place, expected[name])


def test_defaults_are_those_of_the_paper_and_settings_go_through() -> None:
    model = net()
    before = backward(model)
    filter_gradients(model)
    expected = build(FilterSettings("fft", 0.05), model)(before)
    assert all(
        torch.equal(p.grad, expected[name]) for name, p in trainable(model).items() if p.grad is not None
    )
    before = backward(model)
    filter_gradients(model, "lap-d", 0.1, kernel=3, layers="0.weight")
    assert torch.equal(model[2].weight.grad, before["2.weight"])
    assert not torch.equal(model[0].weight.grad, before["0.weight"])


def test_missing_and_sparse_gradients_are_left_alone() -> None:
    model = nn.ModuleDict(
        {"table": nn.Embedding(40, 4, sparse=True), "a": nn.Linear(4, 40), "b": nn.Linear(9, 9)}
    )
    model["a"](model["table"](torch.tensor([1, 5]))).square().sum().backward()
    sparse = model["table"].weight.grad
    filter_gradients(model, ratio=0.1, layers="all")
    assert model["b"].weight.grad is None
    assert model["table"].weight.grad is sparse and sparse.is_sparse
    assert abs(model["a"].weight.grad.mean().item()) < 1e-6


def test_channels_last_gradients_stay_so() -> None:
    conv = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    g = torch.randn(8, 4, 3, 3)
    conv.weight.grad = g.to(memory_format=torch.channels_last)
    filter_gradients(conv, ratio=0.1)
    expected = build(FilterSettings("fft", 0.1), conv)({"weight": g})["weight"]
    assert torch.equal(conv.weight.grad, expected)
    assert conv.weight.grad.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("make", [lambda p: SGD(p, 0.1, momentum=0.9), lambda p: Adam(p, 0.01)])
def test_the_optimizer_sees_what_filter_gradients_leaves(make: Any) -> None:
    ours, by_hand = net(), net()
    optimizer, plain = FilteredOptimizer(make(ours.parameters()), ours, ratio=0.1), make(by_hand.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(ours).backward()
        assert optimizer.step() is None
        backward(by_hand)
        filter_gradients(by_hand, ratio=0.1)
        plain.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), by_hand.parameters(), strict=True))


def test_the_low_bins_never_move() -> None:
    model = net()
    start = low_band(model)
    optimizer = FilteredOptimizer(SGD(model.parameters(), 0.5, momentum=0.9), model, ratio=0.1)
    first = loss_of(model).item()
    for _ in range(20):
        backward(model)
        optimizer.step()
    for before, after in zip(start, low_band(model), strict=True):
        torch.testing.assert_close(after, before, atol=1e-5, rtol=0)
    assert loss_of(model).item() < first - 0.1


def test_closures_are_filtered_each_time() -> None:
    ours, by_hand = net(), net()

    def closure() -> Tensor:
        backward(ours)
        return loss_of(ours)

    def filtered() -> Tensor:
        backward(by_hand)
        filter_gradients(by_hand, ratio=0.1)
        return loss_of(by_hand)

    make = {"lr": 0.5, "max_iter": 5}
    optimizer = FilteredOptimizer(torch.optim.LBFGS(ours.parameters(), **make), ours, ratio=0.1)
    plain = torch.optim.LBFGS(by_hand.parameters(), **make)
    for _ in range(3):
        assert optimizer.step(closure).item() == plain.step(filtered).item()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), by_hand.parameters(), strict=True))


SCHEDULERS: list[Any] = [
    lambda o: StepLR(o, 2, 0.1),
    lambda o: OneCycleLR(o, 0.3, total_steps=10),
    lambda o: ReduceLROnPlateau(o, patience=0),
]


@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_schedulers_take_it_for_an_optimizer(schedule: Any) -> None:
    rates = []
    for wrap in (True, False):
        model = net()
        inner = SGD(model.parameters(), 0.1, momentum=0.9)
        optimizer: Optimizer = FilteredOptimizer(inner, model) if wrap else inner
        scheduler: LRScheduler = schedule(optimizer)
        seen = []
        for _ in range(6):
            backward(model)
            optimizer.step()
            scheduler.step(*([1.0] if isinstance(scheduler, ReduceLROnPlateau) else []))
            seen.append(inner.param_groups[0]["lr"])
        rates.append(seen)
    assert rates[0] == rates[1] and len(set(rates[0])) > 1  # and no warning about the order of calls


def test_its_state_is_the_wrapped_optimizers() -> None:
    model = net()
    inner = SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = FilteredOptimizer(inner, model)
    backward(model)
    optimizer.step()
    assert optimizer.param_groups is inner.param_groups and optimizer.state is inner.state
    assert optimizer.defaults is inner.defaults and isinstance(optimizer, Optimizer)
    saved = optimizer.state_dict()
    assert len(saved["state"]) == 4 and saved.keys() == inner.state_dict().keys()
    other = FilteredOptimizer(SGD(model.parameters(), 0.7, momentum=0.9), model)
    other.load_state_dict(saved)
    assert other.param_groups[0]["lr"] == 0.1 == other.optimizer.param_groups[0]["lr"]
    assert torch.equal(
        other.optimizer.state[model[0].weight]["momentum_buffer"],
        inner.state[model[0].weight]["momentum_buffer"],
    )
    optimizer.zero_grad(set_to_none=False)
    assert model[0].weight.grad is not None and not model[0].weight.grad.any()
    optimizer.zero_grad()
    assert model[0].weight.grad is None
    more = nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [more], "lr": 0.3})
    assert inner.param_groups[1]["lr"] == 0.3
    assert "SGD" in repr(inner) and "lr: 0.3" in repr(optimizer)


def test_hooks_are_the_wrapped_optimizers() -> None:
    model, calls = net(), []
    optimizer = FilteredOptimizer(SGD(model.parameters(), 0.1), model)
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    backward(model)
    optimizer.step()
    assert calls == ["after"]


def test_a_name_that_nobody_has() -> None:
    model = net()
    with pytest.raises(AttributeError, match="nonsense"):
        _ = FilteredOptimizer(SGD(model.parameters(), 0.1), model).nonsense


def test_wrong_settings_are_refused_at_once() -> None:
    model = net()
    with pytest.raises(ConfigError, match='Did you mean "lap-d"'):
        filter_gradients(model, "lapd")
    with pytest.raises(ConfigError, match="matches no trainable tensor"):
        FilteredOptimizer(SGD(model.parameters(), 0.1), model, layers="conv*")


def test_pytorch_and_numpy_are_enough() -> None:
    script = (
        "import sys, common.gradients\n"
        "heavy = {'flwr', 'pydantic', 'torchvision', 'scipy', 'datasets', 'grpc'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def readme_examples() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("### In your own training loop\n")[1].split("\n#")[0]
    return re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("example", "kind"), list(zip(readme_examples(), ["fft", "lap-d"], strict=True)))
def test_the_readmes_examples_run_and_filter(example: str, kind: str) -> None:
    data = [(signal(8 * 12, seed).float().reshape(8, 12), torch.arange(8)) for seed in range(3)]
    model, by_hand = net(), net()
    names = {
        "model": model,
        "optimizer": SGD(model.parameters(), 0.1),
        "data": data,
        "loss_fn": nn.functional.cross_entropy,
    }
    exec(example, names)
    phi = build(FilterSettings(kind, 0.05), by_hand)
    for x, y in data:
        w = trainable(by_hand)
        loss = nn.functional.cross_entropy(by_hand(x), y)
        g = phi(dict(zip(w, torch.autograd.grad(loss, list(w.values())), strict=True)))
        with torch.no_grad():
            for name, p in w.items():
                p -= 0.1 * g[name]
    for ours, expected in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=0)


def test_the_readme_shows_both_ways() -> None:
    whole = "".join(readme_examples())
    assert len(readme_examples()) == 2 and "filter_gradients(" in whole and "FilteredOptimizer(" in whole


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_grad_scaler_unscales_before_the_filter_and_skips_what_overflowed(
    fused: bool, by_hand: bool
) -> None:
    """The step is the one without a scaler; a fused optimizer alone would unscale too late, by itself."""

    def stepped(wrap: bool, overflow: bool) -> Tensor:
        model = net()
        inner = SGD(model.parameters(), 0.1, fused=fused)
        optimizer: Optimizer = FilteredOptimizer(inner, model, ratio=0.1) if wrap else inner
        scaler = torch.amp.GradScaler("cpu", enabled=wrap)
        scaler.scale(loss_of(model)).backward()
        if overflow:
            model[0].weight.grad[0, 0] = torch.inf
        if by_hand:
            scaler.unscale_(optimizer)
        if not wrap:
            filter_gradients(model, "fft", 0.1)
        scaler.step(optimizer)
        scaler.update()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    torch.testing.assert_close(stepped(True, False), stepped(False, False), atol=1e-6, rtol=1e-5)
    assert torch.equal(stepped(True, True), torch.cat([p.detach().flatten() for p in net().parameters()]))


def test_a_deep_copy_steps_on_its_own() -> None:
    model = net()
    optimizer = FilteredOptimizer(SGD(model.parameters(), 0.1, momentum=0.9), model, ratio=0.1)
    twin = copy.deepcopy(optimizer)
    backward(model)
    optimizer.step()
    before = [p.clone() for p in model.parameters()]
    for group in twin.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)
    twin.step()
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert all(not torch.equal(p, q) for p, q in zip(twin.param_groups[0]["params"], before, strict=True))
