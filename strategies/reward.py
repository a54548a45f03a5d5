"""What each node receives: the server's model, or one that depends on what the node contributed.

    ShapFed   (1 - a_i) w_i + a_i w      w_i: the model that node i last returned      (Tastan et al., 2024)
    CGSV      v_i + top_{q_i}(u)         v_i: the model that node i last had           (Xu et al., 2021)

``w`` is the server's model and ``u`` its last move, server optimiser included. An update is always trained
minus received, so updates of one round begin at different models. They are applied to ``w`` all the same:
``w`` stays the server's, is never sent around one, and is what the server evaluates and saves. For CGSV
that is the published rule. ShapFed's code averages the nodes' models instead; with equal weights and all
nodes in all rounds that is the same, otherwise ``w`` keeps clear of what single nodes have drifted to.

Only parameters differ between nodes: buffers (BatchNorm statistics) are the server's for all. Nodes that
test what they receive test their own model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from common.params import Arrays
from strategies.round import Round, Vector
from strategies.scorers import ScorerState
from strategies.server_step import moved


@dataclass(frozen=True)
class Personal:
    """What a broadcast remembers of nodes, by name. Nodes that never had a usable reply are not in it."""

    models: Mapping[str, Arrays] = field(default_factory=dict)  # in the model's own types
    parts: Mapping[str, float] = field(default_factory=dict)  # ShapFed's a


class Broadcast(Protocol):
    """Which model goes to which node."""

    def model_for(self, state: Personal, client: str, model: Arrays) -> Arrays:
        """What ``client`` receives while the server's model is ``model``: the same for the same state."""

    def after(
        self, state: Personal, round_: Round, weights: Vector, scorer: ScorerState, model: Arrays
    ) -> Personal:
        """What to remember after a round with these weights, (m,), that led to ``model``."""


@dataclass(frozen=True)
class SameModel:
    """Everybody receives the server's model."""

    def model_for(self, state: Personal, client: str, model: Arrays) -> Arrays:
        """The server's model."""
        return model

    def after(
        self, state: Personal, round_: Round, weights: Vector, scorer: ScorerState, model: Arrays
    ) -> Personal:
        """Nothing new."""
        return state


@dataclass(frozen=True)
class Personalised:
    """ShapFed: a node's own last model, mixed with as much of the server's as the node contributed.

    ``share``: a_i is the node's weight in the last round that used its reply. ``relative``: its weight
    over the largest one of that round, so that the best node receives the server's model.
    """

    part: Literal["share", "relative"]

    def model_for(self, state: Personal, client: str, model: Arrays) -> Arrays:
        """The mixture; the server's model for a node that has not replied yet."""
        if client not in state.parts:
            return model
        return mixed(state.models[client], model, state.parts[client])

    def after(
        self, state: Personal, round_: Round, weights: Vector, scorer: ScorerState, model: Arrays
    ) -> Personal:
        """Keep what each node returned; an absent node keeps its last."""
        parts = weights / weights.max() if self.part == "relative" else weights
        returned = {
            reply.client: trained(self.model_for(state, reply.client, round_.model), reply.update)
            for reply in round_.replies
        }
        now = dict(zip(round_.clients, parts.tolist(), strict=True))
        return Personal({**state.models, **returned}, {**state.parts, **now})


@dataclass(frozen=True)
class Sparsified:
    """CGSV's reward: of each move of the server's model a node gets the largest entries only.

    How many depends on its reputation. Absent nodes are rewarded by the reputation they have, so that who
    is seldom sampled does not fall behind; the paper knows only rounds of all nodes. A node's own update
    enters its model through the server's move alone, as published. The best node gets the whole move,
    where the published code drops one entry of it.
    """

    beta: float

    def model_for(self, state: Personal, client: str, model: Arrays) -> Arrays:
        """The node's model; the server's for a node that has not replied yet."""
        return state.models.get(client, model)

    def after(
        self, state: Personal, round_: Round, weights: Vector, scorer: ScorerState, model: Arrays
    ) -> Personal:
        """Move the model of each node that has a reputation by its part of the server's move."""
        move = {
            name: np.asarray(model[name], dtype=np.float64) - np.asarray(old, dtype=np.float64)
            for name, old in round_.model.items()
        }
        clients = sorted(scorer.reputation)
        quotas = reward_shares(np.array([scorer.reputation[c] for c in clients]), self.beta)
        models = {
            client: trained(self.model_for(state, client, round_.model), largest(move, quota))
            for client, quota in zip(clients, quotas.tolist(), strict=True)
        }
        return Personal(models)


same_model = SameModel()


def mixed(own: Arrays, model: Arrays, part: float) -> Arrays:
    """``(1 - part) own + part model``, rounded once to the model's own types."""
    return {
        name: (
            (1.0 - part) * np.asarray(own[name], dtype=np.float64) + part * np.asarray(w, dtype=np.float64)
        ).astype(w.dtype)
        for name, w in model.items()
    }


def trained(received: Arrays, update: Mapping[str, Vector] | Arrays) -> Arrays:
    """The model that an update leads to, rounded once to the model's own types."""
    return {name: moved(w, update[name]) for name, w in received.items()}


def reward_shares(reputations: Vector, beta: float) -> Vector:
    """CGSV's q: ``tanh(beta r_i) / max_j tanh(beta r_j)`` of reputations divided by their sum, (n,) -> (n,).

    Above 0 and at most 1 for positive reputations and a beta above 0. The larger beta, the more alike.
    """
    powers = np.tanh(beta * reputations / reputations.sum())
    best = powers.max()
    quotas: Vector = powers / best if best > 0 else np.ones(len(powers))  # a beta that underflows
    return quotas


def largest(move: Mapping[str, Vector], quota: float) -> dict[str, Vector]:
    """``move`` with all but the ``ceil(quota * size)`` largest entries of each tensor set to 0.

    Entries as large as the smallest one that stays, stay too.
    """
    return {name: _largest(x, quota) for name, x in move.items()}


def _largest(x: Vector, quota: float) -> Vector:
    count = min(x.size, int(np.ceil(quota * x.size)))
    if count == x.size:
        return x
    if count == 0:
        return np.zeros(x.shape)
    sizes = np.abs(x)
    smallest = np.partition(sizes.ravel(), x.size - count)[x.size - count]
    return np.where(sizes >= smallest, x, 0.0)
