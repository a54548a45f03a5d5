"""The server's halves by hand: three nodes known, two of which reply."""

import numpy as np
import pytest

from common.models import Head
from common.params import Arrays
from strategies.round import Reply, Round
from strategies.server_rule import (
    AgreedPerturbation,
    Control,
    GlobalState,
    MeanDirection,
    MeanDrift,
    MeanDual,
    ParticipantsShift,
    ReportedControl,
    ServerRule,
    Together,
)

MODEL: Arrays = {"w": np.zeros((2, 1), np.float32)}
WEIGHTS = np.array([0.25, 0.75])
RATE = 0.5


def w(*values: float) -> Arrays:
    return {"w": np.array(values, np.float32).reshape(2, 1)}


def round_of(sent: dict[str, Arrays] | None = None, **reports: tuple[Arrays, Arrays]) -> Round:
    """Client a moved by (1, 2) in 4 steps, client b by (-3, 0) in 2."""
    replies = tuple(
        Reply(name, update, {}, 10, steps=steps, reports={slot: pair[i] for slot, pair in reports.items()})
        for i, (name, update, steps) in enumerate([("a", w(1, 2), 4), ("b", w(-3, 0), 2)])
    )
    return Round(3, MODEL, Head("w", None, (2, 1)), replies, sent or {}, RATE)


def state(slot: str, *values: float) -> GlobalState:
    return {slot: {"w": np.array(values, dtype=np.float64).reshape(2, 1)}}


def step(rule: ServerRule, before: GlobalState, round_: Round) -> tuple[GlobalState, list[float]]:
    """The state after a round, and the update (-2, 0.5) as the optimiser takes it."""
    update = {"w": np.array([[-2.0], [0.5]])}
    after, moved = rule.step(before, round_, update, WEIGHTS, 3)
    assert update["w"].tolist() == [[-2.0], [0.5]]
    return after, moved["w"].ravel().tolist()


def values(of: GlobalState, slot: str) -> list[float]:
    return of[slot]["w"].ravel().tolist()


UNMOVED = [-2.0, 0.5]


def test_fedavg_keeps_and_sends_nothing() -> None:
    assert step(ServerRule(), {}, round_of()) == ({}, UNMOVED)
    assert ServerRule().broadcast({}, 3) == {}
    assert not (ServerRule.reports or ServerRule.needs_steps or ServerRule.needs_memory)


def test_control() -> None:
    # c_i changes by -c - D_i / (K_i eta): a by -(1, -1) - (0.5, 1), b by -(1, -1) - (-3, 0).
    after, moved = step(Control(), state("control", 6, 3), round_of({"control": w(1, -1)}))
    assert values(after, "control") == [6 - 1.5 + 2, 3 + 0 + 1]
    assert moved == UNMOVED
    assert values(Control().broadcast(after, 3), "control") == pytest.approx([6.5 / 3, 4 / 3])
    assert Control().broadcast({}, 3) == {}
    first, _ = step(Control(), {}, round_of())
    assert values(first, "control") == [-0.5 + 3, -1.0]


def test_reported_control() -> None:
    reported = round_of(**{"control-change": (w(1, 2), w(3, 5))})
    after, moved = step(ReportedControl(), state("control", 1, 1), reported)
    assert (values(after, "control"), moved) == ([5, 8], UNMOVED)
    assert values(ReportedControl().broadcast(after, 4), "control") == [1.25, 2]


def test_mean_direction_weighs_each_nodes_pace() -> None:
    # -D / (K eta): a's is (-0.5, -1), b's is (3, 0); the state before has no say.
    after, moved = step(MeanDirection(), state("direction", 9, 9), round_of())
    assert values(after, "direction") == [0.25 * -0.5 + 0.75 * 3, 0.25 * -1]
    assert moved == UNMOVED
    assert MeanDirection().broadcast(after, 3) == after and MeanDirection().broadcast({}, 3) == {}


def test_mean_dual_is_over_all_nodes() -> None:
    after, moved = step(MeanDual(0.5), state("dual", 2, 2), round_of())
    assert values(after, "dual") == [2 - 0.5 * -2, 2 - 0.5 * 2]
    assert moved == pytest.approx([-2 - 3 / 3 / 0.5, 0.5 - 1 / 3 / 0.5])
    assert MeanDual(0.5).broadcast(after, 3) == {}


def test_mean_drift_is_over_all_nodes() -> None:
    after, moved = step(MeanDrift(), state("drift", 2, 2), round_of())
    assert values(after, "drift") == [0, 4]
    assert moved == pytest.approx([-2, 0.5 + 4 / 3])


def test_the_shift_of_participants_is_weighed_as_they_are() -> None:
    after, moved = step(ParticipantsShift(), {}, round_of(shift=(w(4, 0), w(0, 8))))
    assert (after, moved) == ({}, [-2 + 1, 0.5 + 6])


@pytest.mark.parametrize(
    ("duals", "expected"), [((w(3, 0), w(3, 8)), [0.06, 0.08]), ((w(0, 0), w(0, 0)), [0, 0])]
)
def test_the_agreed_perturbation_has_its_length(duals: tuple[Arrays, Arrays], expected: list[float]) -> None:
    rule = AgreedPerturbation(0.1)  # the mean is (3, 4)
    after, moved = step(rule, state("dual", 1, 1), round_of(**{"ascent-dual": duals}))
    assert values(after, "perturbation") == pytest.approx(expected)
    assert moved == UNMOVED and "dual" in after
    assert set(rule.broadcast(after, 3)) == {"perturbation"}


def test_a_perturbation_of_short_duals_has_its_length_too() -> None:
    after, _ = step(AgreedPerturbation(0.1), {}, round_of(**{"ascent-dual": (w(3e-6, 4e-6), w(3e-6, 4e-6))}))
    assert values(after, "perturbation") == pytest.approx([0.06, 0.08])


def test_together_is_one_after_the_other() -> None:
    both = Together((Control(), MeanDrift()))
    before = {**state("control", 6, 3), **state("drift", 2, 2)}
    after, moved = step(both, before, round_of({"control": w(1, -1)}))
    assert (values(after, "control"), values(after, "drift")) == ([6.5, 4], [0, 4])
    assert moved == pytest.approx([-2, 0.5 + 4 / 3])
    assert set(both.broadcast(after, 3)) == {"control"}
    assert both.needs_steps and both.needs_memory and both.reports == ()
    assert Together((MeanDual(1), AgreedPerturbation(1))).reports == ("ascent-dual",)
    assert not Together((ServerRule(),)).needs_memory
    assert (
        Together((ServerRule(), MeanDual(1))).needs_memory and Together((ServerRule(), Control())).needs_steps
    )


def test_sums_are_in_double_precision() -> None:
    replies = tuple(Reply(n, w(x, 0), {}, 1, steps=1) for n, x in (("a", 1e8), ("b", 1.0), ("c", -1e8)))
    round_ = Round(1, MODEL, Head("w", None, (2, 1)), replies)
    after, _ = MeanDual(1.0).step({}, round_, {"w": np.zeros((2, 1))}, np.ones(3) / 3, 3)
    assert values(after, "dual")[0] == -1.0
