"""The two halves of every algorithm meet in the slots that they send each other."""

from typing import Any

import numpy as np
import pytest

from client_app.algorithms import ALGORITHMS
from common.config import RunConfig
from common.models import Head
from common.params import Params, to_arrays, trainable
from strategies.presets import SERVER_RULES
from strategies.round import Reply, Round
from tests.client_app.algorithms.small import local, made, mlp

READINGS: list[dict[str, Any]] = [
    *({"algorithm": name} for name in ALGORITHMS),
    {"algorithm": "scaffold", "scaffold_option": "I"},
    {"algorithm": "fedvssam", "vssam_direction": "control"},
    {"algorithm": "fedvssam", "vssam_reuse": True},
    {"algorithm": "fedspeed", "duals": "participants"},
    {"algorithm": "feddc", "duals": "participants"},
    {"algorithm": "fedlesam", "lesam_rule": "scaffold"},
    {"algorithm": "fedlesam", "lesam_rule": "scaffold", "scaffold_option": "I"},
    {"algorithm": "fedlesam", "lesam_rule": "feddyn"},
]


class Noted(dict[str, Params]):
    """No slots, with a note of which were asked for."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def __bool__(self) -> bool:
        return True

    def get(self, slot: str, default: Any = None) -> Any:
        self.asked.add(slot)
        return default


@pytest.mark.parametrize("reading", READINGS, ids=str)
def test_what_one_half_sends_the_other_half_reads(reading: dict[str, Any]) -> None:
    algorithm = made(**{"name" if key == "algorithm" else key: value for key, value in reading.items()})
    received = Noted()
    trained = local(algorithm, broadcast=received)
    reports = {slot: to_arrays(x) for slot, x in trained.finish.report.items()}
    reply = Reply("a", to_arrays(trained.update), {}, 15, steps=trained.steps, reports=reports)
    round_ = Round(1, to_arrays(trainable(mlp())), Head("2.weight", None, (4, 7)), (reply,), {}, 0.1)

    rule = SERVER_RULES[reading["algorithm"]](RunConfig.model_validate(reading))
    update = {name: x.astype(np.float64) for name, x in reply.update.items()}
    state, _ = rule.step({}, round_, update, np.ones(1), population=1)

    assert set(reports) == set(rule.reports)
    assert set(rule.broadcast(state, population=1)) == received.asked
    assert bool(trained.finish.memory) == algorithm.remembers
