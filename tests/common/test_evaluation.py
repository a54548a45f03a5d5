"""Loss, accuracy and balanced accuracy against numbers worked out by hand or the slow way."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from common.datasets import Examples
from common.evaluation import Metrics, evaluate

CPU = torch.device("cpu")


class Lookup(nn.Module):
    """Gives its inputs back as logits, and notes in which mode it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.modes.append((self.training, torch.is_grad_enabled()))
        return x


def examples(logits: list[list[float]], labels: list[int]) -> Examples:
    return Examples(np.array(logits, np.float32), np.array(labels), len(logits[0]))


def test_by_hand() -> None:
    # Class 0 occurs three times, found twice; class 1 once, found.
    # Softmax of (ln 2, 0, 0) is (1/2, 1/4, 1/4), so the losses are ln 2, ln 2, ln 4 and ln 2.
    two = math.log(2)
    data = examples([[two, 0, 0], [two, 0, 0], [0, two, 0], [0, two, 0]], [0, 0, 0, 1])
    measured = evaluate(Lookup(), data, CPU)
    assert measured.loss == pytest.approx((3 * math.log(2) + math.log(4)) / 4, abs=1e-7)
    assert measured.accuracy == 3 / 4
    assert measured.examples == 4


@settings(max_examples=50)
@given(st.integers(1, 30), st.integers(1, 5), st.integers(1, 40), st.integers(0, 10**6))
def test_any_batch_size_agrees_with_the_slow_way(n: int, classes: int, batch_size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(n, classes)).astype(np.float32), rng.integers(0, classes, n)
    measured = evaluate(Lookup(), Examples(logits, labels, classes), CPU, batch_size)
    guessed = logits.argmax(1)
    losses = [
        math.log(np.exp(row.astype(float)).sum()) - row[label]
        for row, label in zip(logits, labels, strict=True)
    ]
    assert measured.loss == pytest.approx(np.mean(losses), abs=1e-6)
    assert measured.accuracy == pytest.approx(np.mean(guessed == labels))


def test_bytes_are_scaled_as_in_training() -> None:
    # 255 becomes 2 and 0 becomes -2, so the two logits lie 4 apart.
    data = Examples(np.array([[255, 0]], np.uint8), np.array([0]), 2)
    assert evaluate(Lookup(), data, CPU).loss == pytest.approx(math.log1p(math.exp(-4)), abs=1e-6)


def test_the_model_is_asked_in_evaluation_mode_without_gradients() -> None:
    model = Lookup()
    evaluate(model, examples([[1, 0]] * 3, [0, 1, 0]), CPU, batch_size=2)
    assert model.modes == [(False, False), (False, False)]
    assert model.training


@pytest.mark.parametrize("failing", [False, True])
def test_each_part_returns_to_its_own_mode(failing: bool) -> None:
    model = nn.Sequential(
        nn.BatchNorm1d(2), nn.Sequential(nn.Dropout(0.5), nn.Linear(3 if failing else 2, 2))
    )
    model[0].eval()
    modes = [module.training for module in model.modules()]
    before = model[0].running_mean.clone()
    try:
        evaluate(model, examples([[1, 0]], [0]), CPU)
        assert not failing
    except RuntimeError:
        assert failing
    assert [module.training for module in model.modules()] == modes == [True, False, True, True, True]
    assert torch.equal(model[0].running_mean, before)


def test_parameters_and_their_gradients_stay() -> None:
    model = nn.Linear(2, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    evaluate(model, examples([[1, 0]], [0]), CPU)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.weight.grad is None


def test_a_model_that_gives_nan_has_the_loss_nan() -> None:
    measured = evaluate(Lookup(), examples([[math.nan, 0], [1, 0]], [0, 0]), CPU)
    assert math.isnan(measured.loss)
    assert 0 <= measured.accuracy <= 1


def test_a_large_sum_keeps_its_small_terms() -> None:
    # In float32 the mean of 20,000 losses near 2 would be off by 1e-5 and more.
    n = 20_000
    data = Examples(np.tile(np.array([[0, 2]], np.float32), (n, 1)), np.zeros(n, dtype=np.int64), 2)
    assert evaluate(Lookup(), data, CPU).loss == pytest.approx(math.log(1 + math.exp(2)), abs=3e-7)


def test_a_large_term_of_a_batch_does_not_swallow_its_small_ones() -> None:
    # One loss of 2^24 and 99 of ln 2: float32 numbers near 2^24 lie 2 apart, and 99 ln 2 is 68.62.
    logits = np.zeros((100, 2), np.float32)
    logits[0, 1] = 2.0**24
    measured = evaluate(Lookup(), Examples(logits, np.zeros(100, dtype=np.int64), 2), CPU)
    assert measured.loss * 100 == pytest.approx(2.0**24 + 99 * math.log(2), abs=1e-4)


def test_nothing_cannot_be_evaluated() -> None:
    nothing = Examples(np.zeros((0, 2), np.float32), np.zeros(0, dtype=np.int64), 2)
    with pytest.raises(ValueError, match="no examples"):
        evaluate(Lookup(), nothing, CPU)


def test_metrics_are_plain_numbers() -> None:
    measured = evaluate(Lookup(), examples([[1, 0]], [0]), CPU)
    assert {type(value) for value in vars(measured).values()} == {float, int}
    assert isinstance(measured, Metrics)


class Caching(nn.Module):
    """Keeps a tensor that it made in its first pass, as many models keep masks and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.kept = nn.Linear(3, 3), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = torch.ones(3) if self.kept is None else self.kept
        return self.layer(x) * self.kept


def test_a_model_that_keeps_a_tensor_of_the_pass_can_be_trained_afterwards() -> None:
    model, data = Caching(), examples([[1, 0, 0], [0, 1, 0]], [0, 1])
    evaluate(model, data, CPU)
    model(torch.ones(2, 3)).sum().backward()
    assert model.layer.weight.grad is not None
