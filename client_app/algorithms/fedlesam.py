"""FedLESAM (Fan et al., ICML 2024): the way the global model went serves as the perturbation.

e = rho (w_last - w) / ||w_last - w||      y <- y - eta grad f(y + e)

``w_last`` is the global model that the node received when it last took part; the first time there is none,
and no offset. One gradient a step. This follows the paper: the released code shifts each tensor by one
scalar of a flattened vector. With SCAFFOLD's or FedDyn's rule it is FedLESAM-S or FedLESAM-D.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from client_app.algorithms.rule import Ascent, Finish, LocalContext
from common.params import Params, sub, to_radius
from common.slots import LAST_MODEL


@final
@dataclass(frozen=True)
class BackAlongTheWay(Ascent):
    """An offset of length ``rho`` towards the model received last. A lost memory costs one round's offset."""

    rho: float
    remembers: ClassVar[bool] = True

    def offset(self, g: Params, w: Params, ctx: LocalContext) -> Params | None:
        """``rho (w_last - anchor) / ||w_last - anchor||``, the same in all steps of a round."""
        last = ctx.memory.get(LAST_MODEL)
        return None if last is None else to_radius(self.rho, sub(last, ctx.anchor))

    def finish(self, ctx: LocalContext) -> Finish:
        """Remember the model that this round began with."""
        return Finish(memory={LAST_MODEL: ctx.anchor})
