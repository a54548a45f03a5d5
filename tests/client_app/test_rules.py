"""The local rules by hand, and the filter around them."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from client_app.algorithms import ALGORITHMS, Tools
from client_app.algorithms.fedprox import FedProx
from client_app.algorithms.rule import Algorithm, LocalContext, LocalRule
from common.config import RunConfig
from common.filters import keep
from common.params import Params, copy_of

# f_1 = (w - 1)^2 / 2 and f_2 = (w + 2)^2, two clients of one weight.
GRADIENTS: list[Callable[[float], float]] = [lambda w: w - 1, lambda w: 2 * (w + 2)]
PARTICIPANTS = [(0, 1), (0, 1), (0,), (0, 1)]


def one(value: float) -> Params:
    return {"w": torch.tensor([value], dtype=torch.float64)}


def locally_trained(rule: LocalRule, w: float, gradient: Callable[[float], float], lr: float = 0.1) -> float:
    ctx = LocalContext(one(w), lr)
    y = w
    for _ in range(2):
        y -= lr * rule.direction(one(gradient(y)), one(y), ctx)["w"].item()
    return y


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (LocalRule(), [0.09750000, -0.19431250, 0.03260688, -0.24136002]),
        (FedProx(0.5), [0.10875000, -0.17784063, 0.04005989, -0.22815613]),
    ],
)
def test_four_rounds_of_two_clients_worked_out_by_hand(rule: LocalRule, expected: list[float]) -> None:
    w, seen = 0.5, []
    for clients in PARTICIPANTS:
        w = sum(locally_trained(rule, w, GRADIENTS[i]) for i in clients) / len(clients)
        seen.append(w)
    assert seen == pytest.approx(expected, abs=5.1e-9)


def test_the_first_round_of_each_client_by_hand() -> None:
    assert locally_trained(LocalRule(), 0.5, GRADIENTS[0]) == pytest.approx(0.595, abs=1e-15)
    assert locally_trained(LocalRule(), 0.5, GRADIENTS[1]) == pytest.approx(-0.4, abs=1e-15)


def some(seed: int, scale: float = 1.0) -> Params:
    g = torch.Generator().manual_seed(seed)
    return {"weight": scale * torch.randn(8, 6, generator=g), "bias": scale * torch.randn(5, generator=g)}


def test_fedavg_goes_along_the_gradient() -> None:
    g = some(0)
    assert LocalRule().direction(g, some(1), LocalContext(some(2), 0.1)) is g


@given(mu=st.floats(0, 10), seed=st.integers(0, 1000))
def test_fedprox_adds_its_pull_and_changes_nothing(mu: float, seed: int) -> None:
    g, w, anchor = some(seed), some(seed + 1), some(seed + 2)
    before = [copy_of(x) for x in (g, w, anchor)]
    d = FedProx(mu).direction(g, w, LocalContext(anchor, 0.1))
    for name in g:
        assert torch.equal(d[name], g[name] + mu * (w[name] - anchor[name]))
        for now, then in zip((g, w, anchor), before, strict=True):
            assert torch.equal(now[name], then[name])


def test_fedprox_pulls_towards_where_the_round_began() -> None:
    d = FedProx(0.5).direction(one(0.0), one(3.0), LocalContext(one(1.0), 0.1))
    assert d["w"].item() == 1.0  # the step is against it


def test_fedprox_leaves_parameters_without_a_gradient_alone() -> None:
    w = some(1)
    d = FedProx(0.5).direction({"bias": some(0)["bias"]}, w, LocalContext(some(2), 0.1))
    assert list(d) == ["bias"]


def test_fedprox_takes_parameters_and_gives_no_graph() -> None:
    w = {"w": torch.nn.Parameter(torch.ones(2))}
    d = FedProx(0.5).direction({"w": torch.ones(2)}, w, LocalContext({"w": torch.zeros(2)}, 0.1))
    assert not d["w"].requires_grad


def tools() -> Tools:
    return Tools(phi=keep, fft=keep, project=keep)


def test_rules_by_name_take_their_knobs_from_the_configuration() -> None:
    config = RunConfig(prox_mu=0.25)
    assert ALGORITHMS["fedavg"](config, tools()) == Algorithm()
    assert ALGORITHMS["fedprox"](config, tools()) == Algorithm(FedProx(0.25))
