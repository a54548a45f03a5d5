"""FedSpeed (Sun et al., ICLR 2023): a proximal dual and a blend of two gradients.

g1 = grad f(y)      g2 = grad f(y + rho g1)      g = (1 - a) g1 + a g2
y     <- y - eta (g - ghat_i + (1 / lambda) (y - w))
ghat_i <- ghat_i - (1 / lambda) (y - w)                  after the round

The dual is FedDyn's with alpha = 1 / lambda. The paper's server averages ``y - lambda ghat_i`` over the
participants; the authors' simulator uses FedDyn's server, the mean over all nodes, which does not jump with
who takes part. The paper does not normalise the ascent, the simulator does.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from client_app.algorithms.feddyn import FedDyn
from client_app.algorithms.rule import Algorithm, Ascent, LocalContext
from common.params import Params, scale, to_radius


@final
@dataclass(frozen=True)
class Blended(Ascent):
    """SAM's ascent, with ``share`` of the gradient ahead and the rest of the gradient at ``w``."""

    rho: float
    share: float
    normalised: bool
    blind: ClassVar[bool] = False

    def offset(self, g: Params, w: Params, ctx: LocalContext) -> Params | None:
        """``rho g / ||g||``, or ``rho g``."""
        return to_radius(self.rho, g) if self.normalised else scale(self.rho, g)

    def blend(self, g: Params, ahead: Params) -> Params:
        """``(1 - share) g + share ahead``."""
        return {name: (1 - self.share) * x + self.share * ahead[name] for name, x in g.items()}


def fedspeed(
    rho: float, mu: float, share: float = 1.0, normalised: bool = True, participants: bool = False
) -> Algorithm:
    """``mu`` is 1 / lambda. ``participants``: send what the paper's server averages."""
    return Algorithm(FedDyn(mu, sends_shift=participants), Blended(rho, share, normalised))
