"""What a round led to is looked at part by part."""

from dataclasses import replace

import numpy as np
import pytest

from common.params import Arrays
from strategies.recipe import Outcome, RecipeState
from strategies.reward import Personal
from strategies.round import Round
from strategies.soundness import flaw
from tests.strategies.rounds import whole_round

MODEL = {"w": np.ones((2, 3), np.float32)}
ROUND = whole_round({"a": MODEL, "b": MODEL}, MODEL)
OUTCOME = Outcome(MODEL, {"count": np.array(3)}, {}, np.array([0.5, 0.5]))
BAD = {"w": np.array([[1, 2, 3], [4, np.inf, 6]], np.float32)}
HUGE = {"w": np.full((2, 3), 1e39)}  # finite in float64, not in the model's type


def found(outcome: Outcome = OUTCOME, round_: Round = ROUND, **state: object) -> str:
    return flaw(RecipeState(**state), round_, outcome)  # type: ignore[arg-type]


def test_finite_numbers_have_no_flaw() -> None:
    assert found(step={"momentum/w": HUGE["w"]}, shared={"control": {"w": np.zeros((2, 3))}}) == ""


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": BAD}, 'parameter "w"'),
        ({"buffers": {"mean": np.array([np.nan])}}, 'buffer "mean"'),
        ({"weights": np.array([0.5, np.nan])}, 'the weights of "the round"'),
    ],
)
def test_an_outcome_is_finite(changed: dict[str, Arrays], said: str) -> None:
    assert found(replace(OUTCOME, **changed)) == said  # type: ignore[arg-type]


def test_so_is_what_the_server_remembers() -> None:
    assert found(step={"momentum/w": np.array(np.inf)}) == 'the server optimiser\'s "momentum/w"'
    assert found(shared={"control": HUGE}) == 'control of "w"'
    assert found(personal=Personal({"a": MODEL, "b": BAD})) == 'b\'s own "w"'
    assert found(personal=Personal({"c": BAD})) == ""  # not of this round
