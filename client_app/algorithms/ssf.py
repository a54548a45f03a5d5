"""SSF, subspace SCAFFOLD (arXiv 2604.25467): control variates in full, steps and traffic in a subspace.

z   <- z - eta (P g - P c_i + P c)       y = w + P^T z
c_i <- c_i + P^T (chat - P c_i)          chat = P c_i - P c - z / (K eta)

Derived from the abstract; the paper's text was not available to us. ``P`` has orthonormal rows and changes
from round to round. The control's part outside of the subspace stays as it is (the backfill), where a
reprojection would lose it. Written in full coordinates, with Pi = P^T P, this is SCAFFOLD with projected
directions, and that is how it is computed here; only what is sent is of the subspace's size. With P the
identity it is SCAFFOLD.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from client_app.algorithms.rule import Finish, LocalContext, LocalRule
from client_app.algorithms.scaffold import next_control
from common.params import Params, ParamsFilter
from common.slots import CONTROL


@final
@dataclass(frozen=True)
class Ssf(LocalRule):
    """``project`` is Pi of this round. ``weight_decay`` is projected with the gradient: decay that is not
    would leave the subspace. The server's ``c`` comes projected."""

    project: ParamsFilter
    weight_decay: float = 0.0
    remembers: ClassVar[bool] = True
    decays: ClassVar[bool] = True

    def direction(self, g: Params, w: Params, ctx: LocalContext) -> Params:
        """``Pi (g + decay w - c_i) + Pi c``."""
        own, common = ctx.own(CONTROL), ctx.received(CONTROL)
        free = {name: x + self.weight_decay * w[name].detach() - own[name] for name, x in g.items()}
        return {name: x + common[name] for name, x in self.project(free).items()}

    def finish(self, w: Params, steps: int, ctx: LocalContext) -> Finish:
        """``c_i - Pi c - P^T z / (K eta)``, which leaves the rest of ``c_i`` alone."""
        return Finish(memory={CONTROL: next_control(w, steps, ctx)})
