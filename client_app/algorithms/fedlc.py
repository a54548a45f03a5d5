"""FedLC (Zhang et al., ICML 2022): logits calibrated by how often a node sees each class.

z~_c = z_c - tau n_c^(-1/4)

``n_c`` counts the node's training rows of class c. A class that a node has not at all would have an infinite
offset; it is left out of the soft-max, which is the limit, and its row of the head gets no gradient there.
Evaluation uses the plain logits.

The paper's loss leaves the true class out of the denominator. That loss has no lower bound, and others
report that it collapses; cross-entropy over all classes is the default.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from client_app.algorithms.rule import LocalContext


@final
@dataclass(frozen=True)
class CalibratedLoss:
    """``tau`` 0 is cross-entropy over the classes that the node has."""

    tau: float = 1.0
    paper_denominator: bool = False

    def __call__(self, logits: Tensor, y: Tensor, ctx: LocalContext) -> Tensor:
        """The mean over a batch (rows, classes). Raises ValueError without label counts."""
        if ctx.counts is None:
            raise ValueError("FedLC takes the node's label counts; got none")
        logits = logits if logits.dtype == torch.float64 else logits.float()  # half ones under autocast
        calibrated = (logits - self.offsets(ctx.counts).to(logits.dtype)).masked_fill(
            ctx.counts == 0, -torch.inf
        )
        if not self.paper_denominator:
            return nn.functional.cross_entropy(calibrated, y)
        true = calibrated.gather(1, y[:, None])
        others = calibrated.scatter(1, y[:, None], -torch.inf)
        return (others.logsumexp(1) - true[:, 0]).mean()

    def offsets(self, counts: Tensor) -> Tensor:
        """``tau n^(-1/4)``, (classes,); 0 for classes that are masked anyway."""
        return torch.where(counts > 0, self.tau * counts.clamp(min=1).double() ** -0.25, 0.0)
