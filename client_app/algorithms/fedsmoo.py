"""FedSMOO (Sun et al., ICML 2023): FedDyn's dual, and one for the perturbation.

u = g - mu_i - s      e = rho u / ||u||      mu_i <- mu_i + e - s
y <- y - eta (grad f(y + e) - lambda_i + alpha (y - w))

This is the authors' released form, whose own comments say that it leaves out a small term of the exact
solution; the paper's line was not available to us. ``mu_i`` gathers over all steps of a round, so it can grow
to K rho. It travels beside the update: the dearest method here.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from client_app.algorithms.feddyn import FedDyn
from client_app.algorithms.rule import Algorithm, Ascent, Finish, LocalContext, Slots
from common.params import Params, add, sub, to_radius
from common.slots import ASCENT_DUAL, PERTURBATION


@final
@dataclass(frozen=True)
class AgreedAscent(Ascent):
    """SAM's ascent, drawn towards one offset ``s`` that all nodes share."""

    rho: float
    remembers: ClassVar[bool] = True
    blind: ClassVar[bool] = False

    def offset(self, g: Params, w: Params, ctx: LocalContext) -> Params | None:
        """``rho u / ||u||`` with ``u = g - mu_i - s``."""
        dual, shared = ctx.own(ASCENT_DUAL), ctx.received(PERTURBATION)
        return to_radius(self.rho, {name: x - dual[name] - shared[name] for name, x in g.items()})

    def after_step(self, offset: Params | None, direction: Params, ctx: LocalContext) -> Slots:
        """``mu_i + e - s``; a parameter without a gradient has no offset and only loses ``s``."""
        moved = ctx.own(ASCENT_DUAL) | add(offset or {}, ctx.own(ASCENT_DUAL))
        return {ASCENT_DUAL: sub(moved, ctx.received(PERTURBATION))}

    def finish(self, ctx: LocalContext) -> Finish:
        """Keep ``mu_i``, and send it."""
        dual = {ASCENT_DUAL: ctx.own(ASCENT_DUAL)}
        return Finish(memory=dual, report=dual)


def fedsmoo(rho: float, alpha: float) -> Algorithm:
    """FedDyn with the agreed ascent."""
    return Algorithm(FedDyn(alpha), AgreedAscent(rho))
