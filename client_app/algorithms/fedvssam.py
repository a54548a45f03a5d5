"""FedVSSAM (arXiv 2605.09144): one variance-suppressed direction, for looking and for stepping.

u = (1 - theta) v + theta g                   e = rho u / ||u||
y <- y - eta ((1 - theta) v + theta grad f(y + e))

Derived from the abstract; the paper's text was not available to us. ``v`` is the server's mean direction of
the round before (FedCM's), so that local search, local step and global update share one direction; MoFedSAM
differs by making its offset from ``g`` alone. While there is no ``v``, theta counts as 1: plain FedSAM.
``rho`` 0 is FedCM with a warm start, ``theta`` 1 is FedSAM.

Two alternative readings can be switched on: the offset from the step before (one gradient a step), and
SCAFFOLD's corrected gradient in the place of the mixture.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from client_app.algorithms.fedcm import FedCM
from client_app.algorithms.rule import Algorithm, Ascent, LocalContext, LocalRule, Slots
from client_app.algorithms.scaffold import Scaffold
from common.params import Params, to_radius
from common.slots import DIRECTION, LAST_DIRECTION


@final
@dataclass(frozen=True)
class AlongTheRule(Ascent):
    """An offset of length ``rho`` against the way that ``rule`` would step from here."""

    rho: float
    rule: LocalRule
    blind: ClassVar[bool] = False

    def offset(self, g: Params, w: Params, ctx: LocalContext) -> Params | None:
        """``rho u / ||u||`` with the rule's direction ``u``."""
        return to_radius(self.rho, self.rule.direction(g, w, ctx))


@final
@dataclass(frozen=True)
class AlongTheLastStep(Ascent):
    """The direction of the step before makes the offset: one gradient a step.

    A round's first step takes the server's direction; without one it looks at the model itself.
    """

    rho: float

    def offset(self, g: Params, w: Params, ctx: LocalContext) -> Params | None:
        """``rho d / ||d||`` with the last direction ``d``."""
        last = ctx.memory.get(LAST_DIRECTION, ctx.broadcast.get(DIRECTION))
        return None if last is None else to_radius(self.rho, last)

    def after_step(self, offset: Params | None, direction: Params, ctx: LocalContext) -> Slots:
        """Keep the direction for the next step."""
        return {LAST_DIRECTION: direction}


def fedvssam(rho: float, theta: float, reuse: bool = False, control: bool = False) -> Algorithm:
    """The adjusted direction in both places. ``reuse`` and ``control`` are the alternative readings."""
    rule = Scaffold() if control else FedCM(theta, warm_start=True)
    return Algorithm(rule, AlongTheLastStep(rho) if reuse else AlongTheRule(rho, rule))
