"""FedDC (Gao et al., CVPR 2022): the local drift is learnt and taken out.

y   <- y - eta (g + alpha (y + h_i - w) - c_i + c)
h_i <- h_i + (y - w)        c_i <- c_i - c - (y - w) / (K eta)      after the round

``c_i`` and ``c`` are SCAFFOLD's; as in the authors' code they also hold the penalty's mean gradient. The code
moves the model by the mean of ``h_i`` over all nodes, the paper averages ``y + h_i`` over the participants.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from client_app.algorithms.rule import Finish, LocalContext, LocalRule
from client_app.algorithms.scaffold import next_control
from common.params import Params, add, sub
from common.slots import CONTROL, DRIFT, SHIFT


@final
@dataclass(frozen=True)
class FedDC(LocalRule):
    """``alpha`` is the strength of the penalty. ``sends_shift``: send ``h_i`` for the paper's server."""

    alpha: float
    sends_shift: bool = False
    remembers: ClassVar[bool] = True

    def direction(self, g: Params, w: Params, ctx: LocalContext) -> Params:
        """``g + alpha (w + h_i - anchor) - c_i + c``."""
        drift, own, common = ctx.own(DRIFT), ctx.own(CONTROL), ctx.received(CONTROL)
        return {
            name: x
            + self.alpha * (w[name].detach() + drift[name] - ctx.anchor[name])
            - own[name]
            + common[name]
            for name, x in g.items()
        }

    def finish(self, w: Params, steps: int, ctx: LocalContext) -> Finish:
        """Add the round's way to the drift."""
        drift = add(ctx.own(DRIFT), sub(w, ctx.anchor))
        memory = {DRIFT: drift, CONTROL: next_control(w, steps, ctx)}
        return Finish(memory, report={SHIFT: drift} if self.sends_shift else {})
