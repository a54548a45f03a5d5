"""CGSV's reputation and FedDisco's rule by hand."""

import numpy as np
import pytest

from strategies.scorers import Discounted, Reputation, ScorerState
from strategies.signals.cgsv import cosine
from strategies.signals.discrepancy import METRICS, divergence
from strategies.weighting import proportional, proportional_or_examples
from tests.strategies.rounds import head_round, whole_round

ABC = ("a", "b", "c")
THREE = head_round({"a": [[3, 4]], "b": [[1, 0]], "c": [[-1, 0]]})


def test_reputation_in_its_first_round_by_hand() -> None:
    signals = {"cosine": cosine(THREE, np.ones(3)).values}  # 1, 0.6, -0.6
    _, scores = Reputation().score(ScorerState(), signals, THREE, ABC)
    # r = 0.05, 0.03 and the floor of 0.001, over their sum 0.081.
    assert proportional(scores.values, THREE) == pytest.approx(
        [0.6172839506, 0.3703703704, 0.0123456790], abs=1e-6
    )


def test_reputation_follows_slowly_down_to_its_floor() -> None:
    state, scores = ScorerState(), None
    for value in (1.0, -1.0):
        state, scores = Reputation().score(state, {"c": np.full(3, value)}, THREE, ABC)
    assert scores is not None and scores.values == pytest.approx(np.full(3, 0.9))
    for _ in range(20):
        state, scores = Reputation().score(state, {"c": np.full(3, -1.0)}, THREE, ABC)
    assert scores.values == pytest.approx(np.full(3, 0.02))


def test_an_absent_client_keeps_its_reputation() -> None:
    state, _ = Reputation().score(ScorerState(), {"c": np.array([1.0, 0.5, 0.2])}, THREE, ABC)
    two = head_round({"a": [[1, 0]], "c": [[1, 0]]})
    state, scores = Reputation().score(state, {"c": np.array([1.0, 0.2])}, two, ABC)
    assert state.reputation == pytest.approx({"a": 1.0, "b": 0.5, "c": 0.2})
    assert scores.values == pytest.approx([1.0, 0.2])


DISCO = whole_round(
    {n: {"w": np.ones((2, 2))} for n in ABC}, a=(25, 25), b=(30, 0), c=(5, 15)
)  # n = .5 .3 .2
SHARES, UNIFORM = np.array([[0.5, 0.5], [1, 0], [0.25, 0.75]]), np.array([0.5, 0.5])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (METRICS["l2"](SHARES, UNIFORM), [0.7795549612, 0.0603461413, 0.1600988975]),
        (divergence(SHARES, UNIFORM), [0.67566016, 0.0601634942, 0.2641763457]),
        (METRICS["kl"](SHARES, UNIFORM), [0.7311546393, 0, 0.2688453607]),
    ],
)
def test_discounted_examples_by_hand(values: np.ndarray, expected: list[float]) -> None:
    state, scores = Discounted(0.5, 0.1).score(ScorerState(), {"d": values}, DISCO, ABC)
    assert proportional_or_examples(scores.values, DISCO) == pytest.approx(expected, abs=1e-7)
    assert state == ScorerState()


def test_when_all_are_discounted_to_nothing_the_examples_weigh() -> None:
    _, scores = Discounted(a=100, b=0).score(ScorerState(), {"d": np.ones(3)}, DISCO, ABC)
    assert scores.values.tolist() == [0, 0, 0]
    assert proportional_or_examples(scores.values, DISCO) == pytest.approx([0.5, 0.3, 0.2])
