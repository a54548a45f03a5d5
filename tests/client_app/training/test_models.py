"""Whatever a model is made of: tied, frozen, unused and normalising layers."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from client_app.algorithms.fedprox import FedProx
from client_app.algorithms.rule import Algorithm
from common.params import Params, carried, copy_of
from tests.client_app.training.loop import FULL, PLAIN, assert_equal, fft, mlp, run


class Odd(nn.Module):
    """Tied weights, a frozen layer, BatchNorm, and a layer that takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, bias=False)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(6, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.unused = nn.Linear(6, 50)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.norm(self.frozen(torch.tanh(self.tied(torch.tanh(self.first(x))))))
        return logits


@pytest.fixture
def odd() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Odd().double()


@pytest.mark.parametrize(
    "algorithm", [Algorithm(), fft(0.3), Algorithm(FedProx(0.5)), fft(0.3, FedProx(0.5))], ids=repr
)
def test_frozen_tied_and_unused_parameters(odd: nn.Module, algorithm: Algorithm) -> None:
    before = {name: x.clone() for name, x in odd.state_dict().items()}
    update = run(odd, FULL, algorithm).update
    after = odd.state_dict()
    assert set(update) == {
        "first.weight",
        "tied.bias",
        "norm.weight",
        "norm.bias",
        "unused.weight",
        "unused.bias",
    }
    for name in ("frozen.weight", "frozen.bias", "unused.weight", "unused.bias"):
        assert torch.equal(after[name], before[name]), name
    assert not update["unused.weight"].any() and not update["unused.bias"].any()
    for name in ("first.weight", "tied.bias", "norm.weight", "norm.bias"):
        assert update[name].abs().max() > 1e-3, name
    assert torch.equal(after["first.weight"], after["tied.weight"])
    assert torch.equal(carried(odd)["frozen.weight"], before["frozen.weight"])


class OnceUsed(nn.Module):
    """A layer that takes part in the first batch only, beside one that always does."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.once = nn.Linear(6, 4), nn.Linear(6, 4)
        self.batches = 0

    def forward(self, x: Tensor) -> Tensor:
        self.batches += 1
        logits: Tensor = self.always(x) + (self.once(x) if self.batches == 1 else 0)
        return logits


def test_a_layer_that_a_batch_does_not_use_stays_in_that_step() -> None:
    # As with torch.optim.SGD: neither momentum nor weight decay moves what has no gradient.
    def update(epochs: int) -> Params:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = OnceUsed().double()
        return run(model, dataclasses.replace(FULL, epochs=epochs, batch_size=22)).update

    one, three = update(epochs=1), update(epochs=3)
    assert torch.equal(one["once.weight"], three["once.weight"]) and one["once.weight"].any()
    assert not torch.equal(one["always.weight"], three["always.weight"])


def test_batch_norm_statistics_move_and_are_carried_not_updated(odd: nn.Module) -> None:
    odd.eval()
    trained = run(odd, PLAIN)
    beside = carried(odd)
    assert set(beside) >= {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert not set(beside) & set(trained.update)
    assert beside["norm.num_batches_tracked"].item() == trained.steps == 10
    assert beside["norm.running_mean"].any()


def test_the_update_is_not_the_models_own_memory() -> None:
    model = mlp()
    update = run(model, PLAIN).update
    kept = copy_of(update)
    for p in model.parameters():
        p.data.zero_()
    assert_equal(update, kept)
    assert not any(x.requires_grad for x in update.values())
