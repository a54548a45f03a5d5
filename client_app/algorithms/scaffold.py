"""SCAFFOLD (Karimireddy et al., ICML 2020), Algorithm 1.

y   <- y - eta (g - c_i + c)
c_i <- c_i - c + (w - y) / (K eta)        option II
c_i <- the gradient of all rows at w      option I

With a gradient filter the full gradient of option I is filtered as well: otherwise c_i would hold low
frequencies that g has not, and the correction would bring back the drift that the filter took out. Option II
gives the mean of the filtered gradients by itself. With weight decay its c_i holds the mean decay too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

from client_app.algorithms.rule import Finish, LocalContext, LocalRule, Slots
from common.params import Params, add, scale, sub
from common.slots import CONTROL, CONTROL_CHANGE


@final
@dataclass(frozen=True)
class Scaffold(LocalRule):
    """Option II. The server computes the change of ``c_i`` from the update: nothing more is sent."""

    remembers: ClassVar[bool] = True

    def direction(self, g: Params, w: Params, ctx: LocalContext) -> Params:
        """``g - c_i + c``."""
        return _corrected(g, ctx)

    def finish(self, w: Params, steps: int, ctx: LocalContext) -> Finish:
        """The mean direction of the round's steps, without the correction, becomes ``c_i``."""
        return Finish(memory={CONTROL: next_control(w, steps, ctx)})


@final
@dataclass(frozen=True)
class ScaffoldFullGradient(LocalRule):
    """Option I. Costs one more pass over the data, and the change of ``c_i`` travels beside the update."""

    remembers: ClassVar[bool] = True

    def begin(self, gradient: Callable[[], Params], ctx: LocalContext) -> Slots:
        """The gradient of all rows at the anchor."""
        return {_FULL: gradient()}

    def direction(self, g: Params, w: Params, ctx: LocalContext) -> Params:
        """``g - c_i + c``."""
        return _corrected(g, ctx)

    def finish(self, w: Params, steps: int, ctx: LocalContext) -> Finish:
        """The full gradient becomes ``c_i``."""
        full = ctx.own(_FULL)
        return Finish(memory={CONTROL: full}, report={CONTROL_CHANGE: sub(full, ctx.own(CONTROL))})


_FULL = "full-gradient"


def _corrected(g: Params, ctx: LocalContext) -> Params:
    own, common = ctx.own(CONTROL), ctx.received(CONTROL)
    return {name: x - own[name] + common[name] for name, x in g.items()}


def next_control(w: Params, steps: int, ctx: LocalContext) -> Params:
    """``c_i - c + (anchor - w) / (steps lr)``."""
    before = sub(ctx.own(CONTROL), ctx.received(CONTROL))
    return add(before, scale(1 / (steps * ctx.lr), sub(ctx.anchor, w)))
