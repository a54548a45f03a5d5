"""FedLAW: weights and a common shrinkage, learnt on labelled data of the server's own (Li et al., 2023).

    lambda = softmax(a)      gamma = exp(b)      next = gamma sum_k lambda_k w_k
    a, b: Adam on the mean cross-entropy of ``next``, from a = ln(share of examples), b = 0

Learnt anew each round; nothing is remembered. Batches come in one order, so that a round repeats. The
paper's code halves the rate after 20 passes, which is after the last one here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.params import Arrays, Params
from strategies.aggregate import merged_buffers
from strategies.round import Round, Vector
from strategies.scorers import Scored, ScorerState, Scores, Signals
from strategies.weighting import by_examples, uniform


@dataclass(frozen=True)
class Proxy:
    """The server's labelled data, seen through what a model loses on them."""

    batches: int
    loss: Callable[[Params, Arrays, int], Tensor]  # parameters, buffers, batch -> mean cross-entropy


@dataclass(frozen=True)
class FedLaw:
    """The scorer: scores are lambda, the factor on the next model is gamma.

    A lone client weighs 1; gamma is learnt for it as well. If learning leads to no finite numbers, the
    claimed shares of examples weigh and the model keeps its size.
    """

    proxy: Proxy
    learning_rate: float = 0.01
    betas: tuple[float, float] = (0.5, 0.999)
    epochs: int = 20

    def score(self, state: ScorerState, signals: Signals, round_: Round, known: Sequence[str]) -> Scored:
        """Weights on the simplex, and the factor."""
        shares = by_examples(np.zeros(len(round_.replies)), round_)
        models = _models(round_)
        buffers = merged_buffers(round_, uniform(shares, round_))
        logits = torch.from_numpy(np.log(shares)).requires_grad_()
        log_size = torch.zeros((), dtype=torch.float64, requires_grad=True)
        adam = torch.optim.Adam([logits, log_size], lr=self.learning_rate, betas=self.betas)
        for batch in [*range(self.proxy.batches)] * self.epochs:
            adam.zero_grad()
            factors = log_size.exp() * logits.softmax(0)
            # A model's own type: the backward pass of a sum in float64 would cost twice the memory.
            mean = {name: torch.tensordot(factors.to(w.dtype), w, dims=1) for name, w in models.items()}
            self.proxy.loss(mean, buffers, batch).backward()  # type: ignore[no-untyped-call]
            adam.step()
        weights: Vector = logits.detach().softmax(0).numpy()
        size = float(log_size.detach().exp())
        if not (np.isfinite(weights).all() and np.isfinite(size)):
            return state, Scores(shares)
        return state, Scores(weights, size=size)


def _models(round_: Round) -> Params:
    """The clients' models, ``(m, *shape)`` a parameter. What overflows is infinite."""
    models = {}
    with np.errstate(over="ignore"):
        for name, w in round_.model.items():
            rows = [np.add(w, reply.update[name], dtype=w.dtype) for reply in round_.replies]
            models[name] = torch.from_numpy(np.stack(rows))
    return models
