"""The attacks experiment: what attackers send, who counts as caught, and a small one from end to end."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from common.errors import ConfigError
from common.ledger import ClientRecord, Flag
from common.messages import ARRAYS, CONFIG, UPDATE, ConfigRecord, Context, RecordDict, pack, unpack
from common.params import norm
from specfed.experiments.attacks import (
    ATTACKS,
    MODES,
    Attackers,
    Outcome,
    Sight,
    as_markdown,
    attacks,
    outcome_of,
)
from specfed.experiments.plan import Plan

LEARNT = {
    "w": np.full((30, 40), 0.5),
    "b": np.full(7, -2.0),
    "head": np.full((3, 20), 1.5),
    "bias": np.ones(3),
}
MOVED = {name: np.arange(x.size, dtype=float).reshape(x.shape) for name, x in LEARNT.items()}


MODEL = {name: np.cos(x) for name, x in MOVED.items()}
WAY = {name: np.sin(x) for name, x in MOVED.items()}


def sent(name: str, moved: dict[str, np.ndarray] = MOVED) -> dict[str, np.ndarray]:
    return ATTACKS[name].send(Sight(LEARNT, MODEL, moved, WAY, np.random.default_rng(0)))


def cosine(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    return sum(float((x * b[name]).sum()) for name, x in a.items()) / norm(a) / norm(b)


def test_what_attackers_send() -> None:
    assert sent("honest") is LEARNT
    assert norm(sent("zero")) == 0
    assert norm(sent("jitter")) == pytest.approx(1e-6 * norm(LEARNT))
    assert sent("replay") is MOVED
    assert cosine(sent("x10"), LEARNT) == pytest.approx(1) and norm(sent("x10")) == pytest.approx(
        10 * norm(LEARNT)
    )
    assert cosine(sent("flip"), LEARNT) == pytest.approx(-1) and norm(sent("flip")) == pytest.approx(
        norm(LEARNT)
    )


@pytest.mark.parametrize(("name", "like", "sign"), [("model", MODEL, -1), ("way", WAY, 1)])
def test_what_everybody_received_is_sent_as_long_as_an_honest_update(
    name: str, like: dict[str, np.ndarray], sign: int
) -> None:
    assert cosine(sent(name), like) == pytest.approx(sign)
    assert norm(sent(name)) == pytest.approx(norm(LEARNT))


def test_shaped_noise_is_small_where_the_model_moved_little() -> None:
    noise = sent("shaped noise")
    assert norm(noise) == pytest.approx(norm(LEARNT))
    assert all(x.ravel()[0] == 0 for x in noise.values())
    sizes = np.abs(noise["w"].ravel())
    assert sizes[600:].mean() > 4 * sizes[:600].mean()  # the mean of squares, seven times as large


def test_noise_is_as_long_as_an_honest_update_in_each_tensor() -> None:
    noise = sent("noise")
    for name, x in LEARNT.items():
        assert norm({name: noise[name]}) == pytest.approx(norm({name: x}))
    assert abs(cosine(noise, LEARNT)) < 0.1


def test_a_replay_with_noise_keeps_four_fifths_of_its_direction() -> None:
    assert cosine(sent("replay + noise"), MOVED) == pytest.approx(0.8, abs=0.05)
    still = {name: np.zeros_like(x) for name, x in MOVED.items()}
    assert norm(sent("replay + noise", still)) == 0


def test_head_noise_leaves_the_body() -> None:
    noisy = sent("head noise")
    assert all(noisy[name] is LEARNT[name] for name in ("w", "b"))
    assert all((noisy[name] != LEARNT[name]).all() for name in ("head", "bias"))


class Sent(NamedTuple):
    """As much of a message as attackers look at."""

    content: RecordDict

    def has_error(self) -> bool:
        return False


def answers(name: str, *turns: tuple[int, str, float, float]) -> list[float]:
    """What is sent for models and honest updates of one number: turns by round and node, of which "x" and
    "y" attack."""
    learnt = [RecordDict({UPDATE: pack({"w": np.array([number])})}) for *_, number in turns]
    app = Attackers(lambda message, context: Sent(learnt.pop(0)), ["x", "y"], ATTACKS[name], {})
    sent = []
    for number, node, model, _ in turns:
        order = ConfigRecord({"round": number})
        ordered = RecordDict({ARRAYS: pack({"w": np.array([model])}), CONFIG: order})
        answer = app(Sent(ordered), Context(1, 1, {"name": node}, RecordDict(), {}))
        sent.append(unpack(answer.content.array_records[UPDATE])["w"].item())
    return sent


def test_a_replay_is_the_move_that_the_attacker_saw() -> None:
    turns = (1, "a", 5.0, 0.5), (1, "x", 5.0, 0.5), (2, "a", 7.5, 0.5), (2, "x", 7.5, 0.5)
    assert answers("replay", *turns) == [0.5, 0.0, 0.5, 2.5]


def test_partners_send_the_same_whatever_they_have_learnt() -> None:
    first, second = answers("partners", (1, "x", 5.0, 0.5), (1, "y", 5.0, 3.0))
    assert abs(first) == 0.5 and first == second


def turn(round_: int, client: str, weight: float, *tests: str) -> ClientRecord:
    flags = tuple(Flag(test=test, value=1, threshold=2, text="") for test in tests)
    return ClientRecord(round=round_, client=client, status="accepted", weight=weight, flags=flags)


def test_guards_catch_and_wrong_and_other_tests_do_not_count() -> None:
    records = [
        *(turn(1, "a", 0.9), turn(1, "b", 0.1, "noise")),
        *(turn(2, "a", 0.6, "copy"), turn(2, "b", 0.4, "robust-z", "first-layer-rank")),
    ]
    assert outcome_of(records, ["b"], 2, 0.7) == Outcome(
        weight=0.4, accuracy=0.7, caught=1, turns=2, wronged=1
    )


def test_a_small_experiment_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = {name: ATTACKS[name] for name in ("honest", "noise", "replay", "partners", "x10")}
    monkeypatch.setattr("specfed.experiments.attacks.ATTACKS", some)
    told: list[str] = []
    plan = Plan("digits", 5, 100.0, 3, 1, 0, {"model": "mlp4"})
    result = attacks(plan, tmp_path, told.append)
    assert len(told) == 2 * len(some)

    free, guarded = ({name: modes[mode][0] for name, modes in result.outcomes.items()} for mode in MODES)
    assert all(o.wronged == 0 for o in (*free.values(), *guarded.values()))
    for name, attackers in {"noise": 1, "replay": 1, "partners": 2}.items():
        assert free[name].caught == guarded[name].caught == guarded[name].turns == 3 * attackers
        assert guarded[name].weight == 0 < free[name].weight
    for name in ("honest", "x10"):
        assert free[name] == guarded[name] and free[name].caught == 0

    saved = json.loads((tmp_path / "result.json").read_text())
    assert saved["outcomes"]["noise"]["weight"][0]["weight"] == 0
    table = (tmp_path / "result.md").read_text()
    assert table == as_markdown(result)
    assert f"| noise | {free['noise'].weight:.3f} | 0.000 | 6 of 6 | 0 |" in table


def test_keys_that_the_experiment_sets_are_refused(tmp_path: Path) -> None:
    plan = Plan("digits", 5, 0.3, 1, 1, 0, {"guards": "off"})
    with pytest.raises(ConfigError, match='"guards" is what the experiment itself sets'):
        attacks(plan, tmp_path, lambda line: None)
