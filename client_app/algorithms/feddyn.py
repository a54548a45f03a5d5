"""FedDyn (Acar et al., ICLR 2021).

y        <- y - eta (g - lambda_i + alpha (y - w))
lambda_i <- lambda_i - alpha (y - w)                 after the round
"""

from dataclasses import dataclass
from typing import ClassVar, final

from client_app.algorithms.rule import Finish, LocalContext, LocalRule
from common.params import Params, scale, sub
from common.slots import DUAL, SHIFT


@final
@dataclass(frozen=True)
class FedDyn(LocalRule):
    """The dual ``lambda_i`` holds a node's gradient at the point where all nodes agree.

    ``alpha`` is the strength of the pull; in the first round the local models are FedProx's. With
    ``sends_shift`` the node also sends ``-lambda_i / alpha``, for servers that average over the
    participants of a round (FedSpeed's paper).
    """

    alpha: float
    sends_shift: bool = False
    remembers: ClassVar[bool] = True

    def direction(self, g: Params, w: Params, ctx: LocalContext) -> Params:
        """``g - lambda_i + alpha (w - anchor)``."""
        dual = ctx.own(DUAL)
        return {
            name: x - dual[name] + self.alpha * (w[name].detach() - ctx.anchor[name]) for name, x in g.items()
        }

    def finish(self, w: Params, steps: int, ctx: LocalContext) -> Finish:
        """Move the dual against the way that the model went."""
        dual = sub(ctx.own(DUAL), scale(self.alpha, sub(w, ctx.anchor)))
        report = {SHIFT: scale(-1 / self.alpha, dual)} if self.sends_shift else {}
        return Finish(memory={DUAL: dual}, report=report)
