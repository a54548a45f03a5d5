"""FedCM (Xu et al., 2021): momentum of the server's, in every local step.

y <- y - eta (a g + (1 - a) v)

``v`` is the mean direction of all local steps of the round before. A node keeps nothing, which suits
low participation.
"""

from dataclasses import dataclass
from typing import final

from client_app.algorithms.rule import LocalContext, LocalRule
from common.params import Params, scale
from common.slots import DIRECTION


@final
@dataclass(frozen=True)
class FedCM(LocalRule):
    """``mix`` is the share ``a`` of the node's own gradient; 1 is FedAvg.

    Before there is a ``v`` it counts as zero, as in the authors' code, and the first round's steps are short;
    with ``warm_start`` that round is FedAvg's.
    """

    mix: float
    warm_start: bool = False

    def direction(self, g: Params, w: Params, ctx: LocalContext) -> Params:
        """``mix g + (1 - mix) v``."""
        v = ctx.broadcast.get(DIRECTION)
        if v is None:
            return g if self.warm_start else scale(self.mix, g)
        return {name: self.mix * x + (1 - self.mix) * v[name] for name, x in g.items()}
