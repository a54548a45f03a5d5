"""FedAWA: weights learnt from the clients' update vectors (Shi et al., 2025).

    p = softmax(T)      Dbar = sum_k p_k D_k
    L(T) = sum_k p_k |D_k - Dbar| + sum_k p_k (1 - cos(w, w + D_k))

A round's weights are p; then T goes a few Adam steps down the gradient of L, from a fresh optimiser. The
rule favours whoever is close to the mean: a client that sends zeros, too, where the others have little in
common.

The paper's code keeps T by position and starts it at the sizes that clients claim, whose softmax is almost
equal weights. Here T belongs to a client's name and starts at 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from strategies.geometry import around, deviation_products
from strategies.round import Round, Vector
from strategies.scorers import Scored, ScorerState, Scores, Signals

ADAM_EPS = 1e-8


@dataclass(frozen=True)
class FedAwa:
    """The scorer: scores are the softmax over the cohort. Defaults are those of the published code."""

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.5, 0.999)
    steps: int = 1

    def score(self, state: ScorerState, signals: Signals, round_: Round, known: Sequence[str]) -> Scored:
        """The weights before the last step, as in the published code, and the logits after it."""
        products, turns = deviation_products(round_), turning(round_)
        logits = np.array([state.logits.get(client, 0.0) for client in round_.clients])
        first, second = np.zeros_like(logits), np.zeros_like(logits)
        weights = softmax(logits)
        for step in range(1, self.steps + 1):
            weights = softmax(logits)
            _, gradient = loss(logits, products, turns)
            first = self.betas[0] * first + (1 - self.betas[0]) * gradient
            second = self.betas[1] * second + (1 - self.betas[1]) * gradient**2
            mean, variance = first / (1 - self.betas[0] ** step), second / (1 - self.betas[1] ** step)
            logits = logits - self.learning_rate * mean / (np.sqrt(variance) + ADAM_EPS)
        learnt = dict(zip(round_.clients, logits.tolist(), strict=True))
        return replace(state, logits={**state.logits, **learnt}), Scores(weights)


def softmax(logits: Vector) -> Vector:
    """``exp(T) / sum exp(T)``, (m,) -> (m,)."""
    powers = np.exp(logits - logits.max())
    parts: Vector = powers / powers.sum()
    return parts


def turning(round_: Round) -> Vector:
    """``1 - cos(w, w + D_k)`` over the whole model, (m,); 1 where either has no direction."""
    before = {name: np.asarray(w, dtype=np.float64) for name, w in round_.model.items()}
    length = np.sqrt(sum(float(np.square(w).sum()) for w in before.values()))
    turns = np.ones(len(round_.replies))
    for k, reply in enumerate(round_.replies):
        after = {n: w + np.asarray(reply.update[n], dtype=np.float64) for n, w in before.items()}
        both = length * np.sqrt(sum(float(np.square(w).sum()) for w in after.values()))
        if both > 0:
            turns[k] -= sum(float((w * after[name]).sum()) for name, w in before.items()) / both
    return turns


def loss(logits: Vector, products: Vector, turns: Vector) -> tuple[float, Vector]:
    """L and its gradient by the logits, (m,), from ``deviation_products`` and ``turning``.

    Where an update is the mean itself the distance has no gradient; 0 is taken.
    """
    p = softmax(logits)
    products = around(p, products)
    distances = np.sqrt(np.diag(products).clip(min=0.0))
    terms = distances + turns
    pull = np.where(distances > 0, p / np.where(distances > 0, distances, 1.0), 0.0)
    gradient: Vector = p * (terms - p @ terms) - p * (products @ pull)
    return float(p @ terms), gradient
