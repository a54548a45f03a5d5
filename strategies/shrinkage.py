"""FedLWS: shrink each layer of the next model the more, the more its clients disagree (Shi et al., 2025).

    G = |wbar - w|      v = mean_k |D_k - mean_j D_j|      tau = clip(beta v, 0.01, 0.2)
    gamma = |w| / (|w| + tau G)      next = gamma wbar

The paper's code groups parameters by the names of biases and shrinks everything, statistics too. Here each
weight with two axes or more is a layer of its own; biases, norms and buffers keep their size.
"""

from collections.abc import Mapping

import numpy as np

from strategies.aggregate import Aggregate
from strategies.round import Round, Vector

MIN_TAU, MAX_TAU = 0.01, 0.2
NO_WEIGHT = 1e-12  # a layer with a norm below this is not shrunk: it would vanish


def shrunk(aggregate: Aggregate, beta: float = 0.03) -> Aggregate:
    """``aggregate`` with its model shrunk layer by layer, as an update again. A lone client's is not."""

    def shrink(round_: Round, weights: Vector) -> Mapping[str, Vector]:
        update = dict(aggregate(round_, weights))
        if len(round_.replies) == 1:
            return update
        layers = {name: _shrunk_layer(round_, name, update[name], beta) for name in _layers(round_)}
        return {**update, **layers}

    return shrink


def _layers(round_: Round) -> list[str]:
    return [name for name, w in round_.model.items() if w.ndim >= 2]


def _shrunk_layer(round_: Round, name: str, update: Vector, beta: float) -> Vector:
    w = np.asarray(round_.model[name], dtype=np.float64)
    size = float(np.linalg.norm(w))
    if size < NO_WEIGHT:
        return update
    moves = np.stack([np.asarray(r.update[name], dtype=np.float64) for r in round_.replies])
    moves -= moves.mean(axis=0)
    spread = float(np.linalg.norm(moves.reshape(len(moves), -1), axis=1).mean())
    tau = min(max(beta * spread, MIN_TAU), MAX_TAU)
    gamma = size / (size + tau * float(np.linalg.norm(update)))
    return gamma * (w + update) - w
