"""FedAWA: the worked example, its gradient against autograd, and what its steps do."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strategies.fedawa import FedAwa, loss, softmax, turning
from strategies.geometry import deviation_products
from strategies.round import Round
from strategies.scorers import ScorerState
from tests.strategies.rounds import whole_round

# w = (1, 0); models (2, 0), (1, 1), (1, 0): the third client did nothing.
EXAMPLE = whole_round(
    {"a": {"w": np.array([[1.0, 0]])}, "b": {"w": np.array([[0.0, 1]])}, "c": {"w": np.array([[0.0, 0]])}},
    {"w": np.array([[1.0, 0]])},
)


def of(logits: np.ndarray, round_: Round) -> tuple[float, np.ndarray]:
    return loss(logits, deviation_products(round_), turning(round_))


def test_loss_and_gradient_of_the_worked_example() -> None:
    value, gradient = of(np.zeros(3), EXAMPLE)
    assert value == pytest.approx(0.7516699, abs=1e-7)
    assert gradient == pytest.approx([0.0075, 0.1052, -0.1127], abs=1e-4)


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_the_gradient_is_that_of_autograd(clients: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    model = {"w": draw.normal(size=(2, 3)), "b": draw.normal(size=2)}
    updates = {f"c{i}": {n: draw.normal(size=x.shape) for n, x in model.items()} for i in range(clients)}
    logits = draw.normal(size=clients)
    value, gradient = of(logits, whole_round(updates, model))

    w = torch.from_numpy(np.concatenate([x.ravel() for x in model.values()]))
    d = torch.from_numpy(
        np.stack([np.concatenate([x.ravel() for x in u.values()]) for u in updates.values()])
    )
    t = torch.tensor(logits, requires_grad=True)
    p = torch.softmax(t, 0)
    # A lone client is the mean itself, where the norm has no gradient.
    away = (d - p @ d).norm(dim=1) if clients > 1 else torch.zeros(1, dtype=torch.float64)
    total = (p * (away + 1 - torch.cosine_similarity(w[None], w + d))).sum()
    total.backward()
    assert value == pytest.approx(total.item())
    assert t.grad is not None and gradient == pytest.approx(t.grad.numpy(), abs=1e-9)


def test_the_first_weights_are_equal_and_then_the_idle_client_gains() -> None:
    state, scores = FedAwa().score(ScorerState(), {}, EXAMPLE, EXAMPLE.clients)
    assert scores.values == pytest.approx(np.full(3, 1 / 3))
    # The first Adam step is the learning rate against the gradient's sign.
    assert state.logits == pytest.approx({"a": -1e-3, "b": -1e-3, "c": 1e-3}, abs=1e-8)
    _, scores = FedAwa().score(state, {}, EXAMPLE, EXAMPLE.clients)
    assert scores.values == pytest.approx(softmax(np.array([-1e-3, -1e-3, 1e-3])))


def test_steps_are_those_of_torchs_adam() -> None:
    state, scores = FedAwa(steps=5, learning_rate=0.05).score(ScorerState(), {}, EXAMPLE, EXAMPLE.clients)
    t = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([t], lr=0.05, betas=(0.5, 0.999))
    before = t.detach().numpy().copy()
    for _ in range(5):
        before = t.detach().numpy().copy()
        t.grad = torch.from_numpy(of(before, EXAMPLE)[1])
        adam.step()
    assert list(state.logits.values()) == pytest.approx(t.detach().numpy())
    assert scores.values == pytest.approx(softmax(before))


def test_logits_stay_with_their_client() -> None:
    state = ScorerState(logits={"a": 1.0, "b": 2.0, "z": 3.0})
    two = whole_round({"b": {"w": np.eye(2)}, "c": {"w": np.eye(2)}})
    after, scores = FedAwa().score(state, {}, two, ("a", "b", "c", "z"))
    assert scores.values == pytest.approx(softmax(np.array([2.0, 0.0])))
    assert (after.logits["a"], after.logits["z"]) == (1.0, 3.0)


def test_a_model_and_updates_of_zeros_are_no_error() -> None:
    nothing = whole_round({"a": {"w": np.zeros((2, 2))}, "b": {"w": np.zeros((2, 2))}})
    state, scores = FedAwa().score(ScorerState(), {}, nothing, nothing.clients)
    assert scores.values.tolist() == [0.5, 0.5] and state.logits == {"a": 0.0, "b": 0.0}
