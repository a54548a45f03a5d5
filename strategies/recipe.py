"""A recipe: signals -> scorer -> weigh -> guard -> rescale -> aggregate -> rule -> step -> send.

Famous names are recipes (``presets``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from common.ledger import Flag
from common.params import Arrays
from strategies.aggregate import Aggregate, MergeBuffers, merged_buffers, weighted_sum
from strategies.guards import NO_TRAIL, Guards, Sighting, Trail
from strategies.rescale import Rescale, as_sent, resized
from strategies.reward import Broadcast, Personal, same_model
from strategies.round import Round, Vector
from strategies.scorers import Scorer, ScorerState, Scores
from strategies.server_rule import GlobalState, ServerRule
from strategies.server_step import ServerStep, StepState, average
from strategies.signals import Signal
from strategies.weighting import Weigh, shares


@dataclass(frozen=True)
class RecipeState:
    """All that a recipe remembers from round to round, by client name."""

    scorer: ScorerState = ScorerState()
    weights: Mapping[str, float] = field(default_factory=dict)  # each client's last weight
    step: StepState = field(default_factory=dict)  # the server optimiser's arrays, by name
    personal: Personal = Personal()  # of nodes that do not receive the server's model
    shared: GlobalState = field(default_factory=dict)  # of the server's half of the nodes' algorithm
    members: tuple[str, ...] = ()  # all nodes ever known, by name
    trail: Trail = field(default_factory=lambda: NO_TRAIL)  # of earlier models, for the guards


@dataclass(frozen=True)
class Outcome:
    """What a recipe made of a round; arrays are (m,) in the order of ``round.clients``."""

    model: Arrays
    buffers: Arrays
    signals: Mapping[str, Vector]
    weights: Vector
    scores: Scores | None = None
    shares: Vector | None = None  # the scores on the simplex, also when they are only observed
    notes: tuple[str, ...] = ()  # signals that were off, fallbacks that were taken
    flags: Mapping[str, tuple[Flag, ...]] = field(default_factory=dict)  # of the clients that guards flag
    dropped: tuple[str, ...] = ()  # of them those whose replies are left out of model, buffers and state


@dataclass(frozen=True)
class Recipe:
    """How one round's replies become the next model."""

    weigh: Weigh
    signals: Mapping[str, Signal] = field(default_factory=dict)
    scorer: Scorer | None = None
    guards: Guards | None = None  # they see the updates as the signals do
    rescale: Rescale = as_sent  # the signals see the updates before it
    aggregate: Aggregate = weighted_sum
    merge_buffers: MergeBuffers = merged_buffers
    rule: ServerRule = ServerRule()  # the server's half of the nodes' algorithm
    sized: bool = False  # whether the next model is multiplied by the scores' factor
    step: ServerStep = average()
    send: Broadcast = same_model
    needs_labels: bool = False  # whether a reply without label counts is of no use

    def run(self, state: RecipeState, round_: Round, known: Sequence[str]) -> tuple[RecipeState, Outcome]:
        """One round of at least one reply. ``known`` are all clients of the federation, absent ones too."""
        previous = _previous_weights(state, round_)
        readings = {name: signal(round_, previous) for name, signal in self.signals.items()}
        values = {name: reading.values for name, reading in readings.items()}
        said = (text for reading in readings.values() for text in (reading.unavailable, reading.note))
        notes = [text for text in said if text]
        scorer_state, scores, parts = state.scorer, None, None
        if self.scorer is not None:
            scorer_state, scores = self.scorer.score(state.scorer, values, round_, known)
            parts = shares(scores.values)
            if parts is None:
                notes.append("the scores have no positive sum: they do not weigh")
        weights = self.weigh(np.zeros(len(round_.replies)) if scores is None else scores.values, round_)
        seen = self.guards.look(weights, round_, state.trail) if self.guards else Sighting(weights)
        weights = seen.weights
        kept, shares_of_kept = _without(round_, weights, seen.dropped)
        update = self.aggregate(self.rescale(kept), shares_of_kept)
        if self.sized and scores is not None:
            update = resized(round_.model, update, scores.size)
        members = tuple(sorted({*state.members, *known, *round_.clients}))
        shared, update = self.rule.step(state.shared, kept, update, shares_of_kept, len(members))
        step_state, model = self.step(state.step, round_.model, update)
        outcome = Outcome(
            model=model,
            buffers=self.merge_buffers(kept, shares_of_kept),
            signals=values,
            weights=weights,
            scores=scores,
            shares=parts,
            notes=(*notes, *seen.notes),
            flags=seen.flags,
            dropped=seen.dropped,
        )
        last = dict(zip(kept.clients, shares_of_kept.tolist(), strict=True))
        personal = self.send.after(state.personal, kept, shares_of_kept, scorer_state, model)
        weighed = {**state.weights, **last}
        trail = self.guards.after(state.trail, round_) if self.guards else state.trail
        return RecipeState(scorer_state, weighed, step_state, personal, shared, members, trail), outcome


def _without(round_: Round, weights: Vector, dropped: Sequence[str]) -> tuple[Round, Vector]:
    """The round and the weights without some clients, who have none."""
    if not dropped:
        return round_, weights
    stay = [i for i, client in enumerate(round_.clients) if client not in dropped]
    return replace(round_, replies=tuple(round_.replies[i] for i in stay)), weights[stay]


def _previous_weights(state: RecipeState, round_: Round) -> Vector:
    """Each client's last weight; clients that never had one get the mean of the others'."""
    seen = [state.weights[c] for c in round_.clients if c in state.weights]
    typical = float(np.mean(seen)) if any(seen) else 1.0
    return np.array([state.weights.get(c, typical) if any(seen) else 1.0 for c in round_.clients])
