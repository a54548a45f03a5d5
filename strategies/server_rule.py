"""The server's halves of the nodes' algorithms: what they remember, broadcast, and add to the update.

A half sits between the aggregated update and the server's optimiser, so that any weighting and optimiser goes
with any algorithm. It sees all replies as they are: no robust aggregate would hold what it makes of them. It
meets the node's half in slot names alone (``common.slots``).

Sums over all nodes ever known stand in the state, not means: a node that joins brings zeros, and the mean
over ``population`` nodes is exact at once. ``c = mean(c_i)`` and ``h = mean(lambda_i)`` hold over all nodes,
absent ones too, whatever the weights are: the weights weigh models, not control variates. The papers prove
their rates for uniform weights.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from common.params import Arrays
from common.slots import ASCENT_DUAL, CONTROL, CONTROL_CHANGE, DIRECTION, PERTURBATION, SHIFT
from strategies.round import Round, Vector

Update = Mapping[str, Vector]
GlobalState = Mapping[str, Update]  # slot -> parameter -> float64


@dataclass(frozen=True)
class ServerRule:
    """Nothing beside the model (FedAvg, FedProx, FedSAM, ...), and the interface of every other half."""

    means: ClassVar[tuple[str, ...]] = ()  # slots of the state that nodes receive as the mean over all nodes
    reports: ClassVar[tuple[str, ...]] = ()  # slots that a reply must hold
    needs_steps: ClassVar[bool] = False  # whether a reply must say how many steps it took
    needs_memory: ClassVar[bool] = False  # whether a node that lost its memory breaks the state

    def broadcast(self, state: GlobalState, population: int) -> GlobalState:
        """What goes to the nodes beside the model, by slot; a slot that is not set yet is left out."""
        there = [slot for slot in self.means if slot in state]
        return {slot: {name: x / population for name, x in state[slot].items()} for slot in there}

    def step(
        self, state: GlobalState, round_: Round, update: Update, weights: Vector, population: int
    ) -> tuple[GlobalState, Update]:
        """The state after a round, and the update that the server's optimiser takes.

        ``weights`` (m,) made ``update``; ``population`` counts the nodes ever known.
        """
        return state, update


@final
@dataclass(frozen=True)
class Control(ServerRule):
    """SCAFFOLD's c, option II: ``c_i`` changes by ``-c - D_i / (K_i eta)``, so nodes need not send it.

    ``c`` is the one that the nodes received, rounded as they received it.
    """

    means: ClassVar[tuple[str, ...]] = (CONTROL,)
    needs_steps: ClassVar[bool] = True
    needs_memory: ClassVar[bool] = True

    def step(
        self, state: GlobalState, round_: Round, update: Update, weights: Vector, population: int
    ) -> tuple[GlobalState, Update]:
        """Add the participants' changes."""
        sent = round_.sent.get(CONTROL)
        paces = _paces(round_)

        def change(name: str, x: Vector) -> Vector:
            moved = x - _sum((r.update[name] for r in round_.replies), paces)
            return moved if sent is None else moved - len(paces) * np.asarray(sent[name], dtype=np.float64)

        return _renewed(state, CONTROL, round_.model, change), update


@final
@dataclass(frozen=True)
class ReportedControl(ServerRule):
    """SCAFFOLD's c, option I: nodes send how much their ``c_i`` changed."""

    means: ClassVar[tuple[str, ...]] = (CONTROL,)
    reports: ClassVar[tuple[str, ...]] = (CONTROL_CHANGE,)
    needs_memory: ClassVar[bool] = True

    def step(
        self, state: GlobalState, round_: Round, update: Update, weights: Vector, population: int
    ) -> tuple[GlobalState, Update]:
        """Add the participants' changes."""

        def change(name: str, x: Vector) -> Vector:
            return x + _sum(r.reports[CONTROL_CHANGE][name] for r in round_.replies)

        return _renewed(state, CONTROL, round_.model, change), update


@final
@dataclass(frozen=True)
class MeanDirection(ServerRule):
    """FedCM's v: ``-sum_i a_i D_i / (K_i eta)`` with the round's weights and its own learning rate."""

    needs_steps: ClassVar[bool] = True

    def broadcast(self, state: GlobalState, population: int) -> GlobalState:
        """The last round's direction; nothing before the first."""
        return state

    def step(
        self, state: GlobalState, round_: Round, update: Update, weights: Vector, population: int
    ) -> tuple[GlobalState, Update]:
        """Replace the direction."""
        factors = [-w * p for w, p in zip(weights.tolist(), _paces(round_), strict=True)]

        def direction(name: str, x: Vector) -> Vector:
            return _sum((r.update[name] for r in round_.replies), factors)

        return _renewed(state, DIRECTION, round_.model, direction), update


@final
@dataclass(frozen=True)
class MeanDual(ServerRule):
    """FedDyn's h, FedSMOO's and FedSpeed's: ``h <- h - (alpha / N) sum_i D_i``, the mean of all duals.

    ``w`` moves by ``-h / alpha`` beside the update.
    """

    alpha: float
    needs_memory: ClassVar[bool] = True

    def step(
        self, state: GlobalState, round_: Round, update: Update, weights: Vector, population: int
    ) -> tuple[GlobalState, Update]:
        """Move the dual, and the update by it."""

        def less(name: str, x: Vector) -> Vector:
            return x - self.alpha * _total(round_, name)

        state = _renewed(state, _DUAL, round_.model, less)
        return state, _plus(update, state[_DUAL], -1 / (self.alpha * population))


@final
@dataclass(frozen=True)
class MeanDrift(ServerRule):
    """FedDC's mean over all nodes of ``h_i``, as in the authors' code: it grows by ``(1 / N) sum_i D_i``, and
    ``w`` moves by it beside the update."""

    needs_memory: ClassVar[bool] = True

    def step(
        self, state: GlobalState, round_: Round, update: Update, weights: Vector, population: int
    ) -> tuple[GlobalState, Update]:
        """Move the drift, and the update by it."""
        state = _renewed(state, _DRIFT, round_.model, lambda name, x: x + _total(round_, name))
        return state, _plus(update, state[_DRIFT], 1 / population)


@final
@dataclass(frozen=True)
class ParticipantsShift(ServerRule):
    """FedSpeed and FedDC as in their papers: ``w`` moves by the weighted mean of what participants report.

    It jumps with who takes part in a round.
    """

    reports: ClassVar[tuple[str, ...]] = (SHIFT,)

    def step(
        self, state: GlobalState, round_: Round, update: Update, weights: Vector, population: int
    ) -> tuple[GlobalState, Update]:
        """Add the reports, weighted as the updates are."""
        shift = {
            name: _sum((r.reports[SHIFT][name] for r in round_.replies), weights.tolist())
            for name in round_.model
        }
        return state, _plus(update, shift, 1.0)


@final
@dataclass(frozen=True)
class AgreedPerturbation(ServerRule):
    """FedSMOO's s: ``rho m / ||m||`` with the participants' mean ``m`` of ``mu_i``; zeros stay zeros."""

    rho: float
    reports: ClassVar[tuple[str, ...]] = (ASCENT_DUAL,)

    def broadcast(self, state: GlobalState, population: int) -> GlobalState:
        """The shared offset."""
        return {slot: x for slot, x in state.items() if slot == PERTURBATION}

    def step(
        self, state: GlobalState, round_: Round, update: Update, weights: Vector, population: int
    ) -> tuple[GlobalState, Update]:
        """Replace the offset."""
        mean = {
            name: _sum(r.reports[ASCENT_DUAL][name] for r in round_.replies) / len(round_.replies)
            for name in round_.model
        }
        size = float(np.sqrt(sum(float(np.square(x).sum()) for x in mean.values())))
        factor = self.rho / max(size, 1e-12)
        return {**state, PERTURBATION: {name: factor * x for name, x in mean.items()}}, update


@final
@dataclass(frozen=True)
class Together(ServerRule):
    """Several halves, one after the other; their slots have different names."""

    halves: tuple[ServerRule, ...]

    @property
    def reports(self) -> tuple[str, ...]:  # type: ignore[override]
        """The slots of all."""
        return tuple(slot for half in self.halves for slot in half.reports)

    @property
    def needs_steps(self) -> bool:  # type: ignore[override]
        """Whether any does."""
        return any(half.needs_steps for half in self.halves)

    @property
    def needs_memory(self) -> bool:  # type: ignore[override]
        """Whether any does."""
        return any(half.needs_memory for half in self.halves)

    def broadcast(self, state: GlobalState, population: int) -> GlobalState:
        """The slots of all."""
        return {slot: x for half in self.halves for slot, x in half.broadcast(state, population).items()}

    def step(
        self, state: GlobalState, round_: Round, update: Update, weights: Vector, population: int
    ) -> tuple[GlobalState, Update]:
        """One after the other."""
        for half in self.halves:
            state, update = half.step(state, round_, update, weights, population)
        return state, update


_DUAL, _DRIFT = "dual", "drift"  # sums that stay on the server


def _paces(round_: Round) -> list[float]:
    """``1 / (K_i eta)`` of each reply, with the learning rate of this round."""
    return [1 / (reply.steps * round_.learning_rate) for reply in round_.replies]


def _total(round_: Round, name: str) -> Vector:
    return _sum(reply.update[name] for reply in round_.replies)


def _sum(arrays: Iterable[NDArray[np.generic]], factors: Iterable[float] = repeat(1.0)) -> Vector:
    """``sum_i f_i x_i`` in float64, in order."""
    parts = (f * np.asarray(x, dtype=np.float64) for f, x in zip(factors, arrays, strict=False))
    return np.asarray(sum(parts))


def _plus(update: Update, more: Mapping[str, Vector], factor: float) -> Update:
    return {name: x + factor * more[name] for name, x in update.items()}


def _renewed(
    state: GlobalState, slot: str, model: Arrays, new: Callable[[str, Vector], Vector]
) -> GlobalState:
    """The state with ``new(name, old)`` for each parameter of a slot; what is not there yet is zeros."""
    old = state.get(slot, {})
    return {**state, slot: {name: new(name, old.get(name, np.zeros(w.shape))) for name, w in model.items()}}
