"""``attacks``: what a node gets for sending something else than what it has learnt, and whether it is seen.

The last node of a federation attacks in each round, in the ways below; each way runs twice with the same
split, start and order of batches: with ``guards=observe``, which tells only, and with ``guards=weight``. The
attacker trains as the others do, so that it knows how long an honest update is, and then sends

===============  =====================================================================================
honest           what it has learnt
zero             nothing
jitter           noise of a millionth of an honest update's length
noise            noise as long as an honest update in each tensor
shaped noise     noise as uneven as the squares of the model's last move
replay           the model's last move, as it saw it; nothing in the first round
way              the model's whole way since the first round
model            the model itself, with a minus
replay + noise   the same, with so much noise that the cosine of both is 0.8
partners         the same noise from two nodes
head noise       its own update, but noise in the head
x10              ten times its own update
flip             its own update the other way
===============  =====================================================================================
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np

from common.config import NodeConfig, RunConfig, Value
from common.datasets import Examples, load
from common.ledger import ClientRecord, Record
from common.messages import ARRAYS, CONFIG, UPDATE, Context, Message, pack, unpack
from common.params import Arrays, norm
from common.seeding import stream
from specfed import cluster
from specfed.experiments.correlation import mean_weights
from specfed.experiments.plan import (
    Plan,
    Say,
    dealt,
    markdown_table,
    number,
    run_and_test,
    save,
    shown,
    some_rows,
)
from specfed.local_grid import Answer
from strategies.guards import TESTS

MODES = ("observe", "weight")
Memory = dict[str, tuple[Arrays, Arrays]]
OWN = ("guards", "algorithm", "uplink", "fraction-train", "min-replies")


@dataclass(frozen=True)
class Sight:
    """What an attacker knows in a round."""

    learnt: Arrays  # its own honest update
    model: Arrays  # as it received it
    moved: Arrays  # the model's last move; zeros in the first round
    way: Arrays  # its way since the first round
    draw: np.random.Generator

    def noise(self) -> Arrays:
        """Noise, in each tensor as long as the honest update."""
        drawn = {name: self.draw.normal(size=x.shape) for name, x in self.learnt.items()}
        return {name: x * (_length(self.learnt[name]) / (_length(x) or 1.0)) for name, x in drawn.items()}


@dataclass(frozen=True)
class Attack:
    """What attackers send, and how many there are."""

    send: Callable[[Sight], Arrays]
    attackers: int = 1


def _times(factor: float, arrays: Arrays) -> Arrays:
    return {name: np.multiply(x, factor) for name, x in arrays.items()}


def _as_long(sight: Sight, arrays: Arrays) -> Arrays:
    """As long as the honest update; zeros stay zeros."""
    return _times(norm(sight.learnt) / (norm(arrays) or 1.0), arrays)


def _length(x: np.ndarray) -> float:
    return norm({"": x})


def _replay_and_noise(sight: Sight) -> Arrays:
    noise = sight.noise()
    return {
        name: np.add(x, np.multiply(noise[name], 0.75 * _length(x) / (_length(noise[name]) or 1.0)))
        for name, x in sight.moved.items()
    }


def _shaped_noise(sight: Sight) -> Arrays:
    noise = sight.noise()
    return {name: np.multiply(noise[name], np.square(x)) for name, x in sight.moved.items()}


def _head_noise(sight: Sight) -> Arrays:
    """The last weight and all that comes after it is the head in the models at hand."""
    names = list(sight.learnt)
    weights = [name for name in names if sight.learnt[name].ndim > 1]
    head = names[names.index(weights[-1]) :]
    noise = sight.noise()
    return {name: noise[name] if name in head else x for name, x in sight.learnt.items()}


ATTACKS: Mapping[str, Attack] = {
    "honest": Attack(lambda sight: sight.learnt),
    "zero": Attack(lambda sight: _times(0.0, sight.learnt)),
    "jitter": Attack(lambda sight: _times(1e-6, sight.noise())),
    "noise": Attack(Sight.noise),
    "shaped noise": Attack(lambda sight: _as_long(sight, _shaped_noise(sight))),
    "replay": Attack(lambda sight: sight.moved),
    "way": Attack(lambda sight: _as_long(sight, sight.way)),
    "model": Attack(lambda sight: _as_long(sight, _times(-1.0, sight.model))),
    "replay + noise": Attack(_replay_and_noise),
    "partners": Attack(Sight.noise, attackers=2),
    "head noise": Attack(_head_noise),
    "x10": Attack(lambda sight: _times(10.0, sight.learnt)),
    "flip": Attack(lambda sight: _times(-1.0, sight.learnt)),
}


class Attackers:
    """A ClientApp some of whose nodes, by name, attack. Partners send the same.

    ``memory`` holds the models that each of them received first and last.
    """

    def __init__(self, app: Answer, names: Sequence[str], attack: Attack, memory: Memory) -> None:
        self._app, self._names, self._attack, self._received = app, names, attack, memory
        self._sent: dict[int, Arrays] = {}  # round -> what the first of them sent

    def __call__(self, message: Message, context: Context) -> Message:
        """The app's reply, with another update where an attacker trained."""
        reply = self._app(message, context)
        name = str(context.node_config["name"])
        if name not in self._names or reply.has_error() or UPDATE not in reply.content:
            return reply
        model = unpack(message.content.array_records[ARRAYS])
        first, before = self._received.get(name, (model, model))
        self._received[name] = (first, model)
        learnt = unpack(reply.content.array_records[UPDATE])
        moved, way = ({n: np.subtract(x, old[n]) for n, x in model.items()} for old in (before, first))
        number = int(str(message.content.config_records[CONFIG]["round"]))
        if number not in self._sent:
            sight = Sight(learnt, model, moved, way, stream(0, "attack", number))
            sent = self._attack.send(sight)
            self._sent[number] = {n: np.asarray(x, dtype=learnt[n].dtype) for n, x in sent.items()}
        reply.content[UPDATE] = pack(self._sent[number])
        return reply


@dataclass(frozen=True)
class Outcome:
    """One run."""

    weight: float  # of an attacker, mean over the last half of the rounds
    accuracy: float  # of the last model, 0..1
    caught: int  # turns of attackers that a guard flagged, of ``turns``
    turns: int
    wronged: int  # turns of the others that a guard flagged


@dataclass(frozen=True)
class Result:
    """All runs: attack -> mode -> an outcome for each seed."""

    plan: Plan
    train_rows: int
    test_rows: int
    outcomes: Mapping[str, Mapping[str, tuple[Outcome, ...]]]
    seconds: float


def attacks(plan: Plan, folder: Path, say: Say) -> Result:
    """Run the experiment; its runs and ``result.json`` and ``result.md`` go into ``folder``.

    ``say`` gets a line after each run. Raises SpecfedError for a plan that cannot be carried out.
    """
    started = time.monotonic()
    plan.check(OWN)
    test = some_rows(load(plan.data, "test"), plan.rows)
    outcomes: dict[str, dict[str, list[Outcome]]] = {name: {mode: [] for mode in MODES} for name in ATTACKS}
    train_rows = 0
    with cluster.scratch() as scratch:
        for seed, shares in dealt(plan, [_config(plan, 0, "honest", MODES[0])], scratch):
            train_rows = shares.train
            for name, mode in product(ATTACKS, MODES):
                outcome = _run(_config(plan, seed, name, mode), shares.nodes, ATTACKS[name], folder, test)
                outcomes[name][mode].append(outcome)
                say(f"seed {seed}  {name:<14}  guards={mode:<7}  {_said(outcome)}")
    frozen = {name: {mode: tuple(o) for mode, o in modes.items()} for name, modes in outcomes.items()}
    result = Result(plan, train_rows, len(test), frozen, time.monotonic() - started)
    save(folder, {"experiment": "attacks", **asdict(result)}, as_markdown(result))
    return result


def outcome_of(records: Sequence[Record], attackers: Sequence[str], rounds: int, accuracy: float) -> Outcome:
    """What a run's records say of its attackers and of the others."""
    turns = [record for record in records if isinstance(record, ClientRecord)]
    flagged = [turn for turn in turns if any(flag.test in TESTS for flag in turn.flags)]
    names = sorted({turn.client for turn in turns})
    weights = dict(zip(names, mean_weights(records, names, rounds), strict=True))
    return Outcome(
        weight=fmean(weights[name] for name in attackers),
        accuracy=accuracy,
        caught=sum(turn.client in attackers for turn in flagged),
        turns=sum(turn.client in attackers for turn in turns),
        wronged=sum(turn.client not in attackers for turn in flagged),
    )


def as_markdown(result: Result) -> str:
    """The result's table, and under it the settings and limits."""
    head = ["sent", "weight", "guarded", "flagged", "others flagged", "accuracy", "guarded"]
    rows = []
    for name, modes in result.outcomes.items():
        free, guarded = (modes[mode] for mode in MODES)
        both = (*free, *guarded)
        rows.append(
            [
                name,
                number(fmean(o.weight for o in free), 3),
                number(fmean(o.weight for o in guarded), 3),
                f"{sum(o.caught for o in both)} of {sum(o.turns for o in both)}",
                str(sum(o.wronged for o in both)),
                number(fmean(o.accuracy for o in free), 3),
                number(fmean(o.accuracy for o in guarded), 3),
            ]
        )
    return "\n".join([*markdown_table(head, rows), "", small_print(result), ""])


def small_print(result: Result) -> str:
    """What was run, and what the numbers do not say."""
    plan = result.plan
    config = _config(plan, 0, "honest", MODES[1])
    settings = " ".join(f"{key}={value}" for key, value in shown(config, plan).items())
    return (
        f"Weight of an attacker: mean over the last half of {plan.rounds} rounds and {plan.seeds} seeds; an "
        f"equal one is {1 / plan.nodes:.3f}. Flagged: turns in both modes. Data {plan.data}: "
        f"{result.train_rows:,} training rows, {plan.nodes} nodes, {plan.split}, "
        f"{result.test_rows:,} test rows. {settings} weighting={config.weighting}. {result.seconds:.0f} s. "
        "An attacker who knows the guards can do better than these."
    )


# --- runs --------------------------------------------------------------------------------------------


def _run(
    config: RunConfig, nodes: Sequence[NodeConfig], attack: Attack, folder: Path, test: Examples
) -> Outcome:
    names = [node.name for node in nodes][-attack.attackers :]
    records, accuracy = run_and_test(
        config, nodes, folder, test, lambda app: Attackers(app, names, attack, {})
    )
    return outcome_of(records, names, config.rounds, accuracy)


def _said(outcome: Outcome) -> str:
    seen = f"flagged {outcome.caught:>2} of {outcome.turns}, others {outcome.wronged}"
    return f"weight {outcome.weight:.3f}  {seen}  accuracy {outcome.accuracy:.3f}"


def _config(plan: Plan, seed: int, name: str, mode: str) -> RunConfig:
    label = f"{name.replace(' + ', '-').replace(' ', '-')}-{mode}"
    # The guards may leave attackers out, and a round needs no more than the others.
    others = max(1, plan.nodes - max(attack.attackers for attack in ATTACKS.values()))
    own: dict[str, Value] = {"guards": mode, "min-nodes": plan.nodes, "min-replies": others}
    return plan.config(seed, label, {}, own)
