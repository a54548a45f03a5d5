"""FedSAM (Qu et al., ICML 2022; Caldarola et al., ECCV 2022): sharpness-aware local steps.

e = rho g / ||g||      y <- y - eta grad f(y + e)

The norm is over all tensors together. Both passes see the same rows and the same dropout; normalisation
statistics learn from the first alone. The gradient that makes the offset is not filtered unless the run
says so (site ``ascent``).
"""

from dataclasses import dataclass
from typing import ClassVar, final

from client_app.algorithms.rule import Ascent, LocalContext
from common.params import Params, to_radius


@final
@dataclass(frozen=True)
class Sam(Ascent):
    """An offset of length ``rho`` up the gradient; no gradient, no offset. ``rho`` 0 is FedAvg."""

    rho: float
    blind: ClassVar[bool] = False

    def offset(self, g: Params, w: Params, ctx: LocalContext) -> Params | None:
        """``rho g / ||g||``."""
        return to_radius(self.rho, g)


@final
@dataclass(frozen=True)
class Asam(Ascent):
    """The adaptive form: ``e = rho w^2 g / ||w g||``, which a rescaling of weights does not change."""

    rho: float
    blind: ClassVar[bool] = False

    def offset(self, g: Params, w: Params, ctx: LocalContext) -> Params | None:
        """``rho w^2 g / ||w g||``."""
        size = {name: w[name].detach() * x for name, x in g.items()}
        return {name: w[name].detach() * x for name, x in to_radius(self.rho, size).items()}
