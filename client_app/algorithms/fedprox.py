"""FedProx (Li et al., MLSys 2020), the gradient of its proximal term.

y <- y - eta (g + mu (y - w))
"""

from dataclasses import dataclass
from typing import final

from client_app.algorithms.rule import LocalContext, LocalRule
from common.params import Params


@final
@dataclass(frozen=True)
class FedProx(LocalRule):
    """Pulls a node's model ``y`` towards the global ``w`` that its round began with. ``mu`` 0 is FedAvg."""

    mu: float

    def direction(self, g: Params, w: Params, ctx: LocalContext) -> Params:
        """``g + mu (w - anchor)``."""
        return {name: x + self.mu * (w[name].detach() - ctx.anchor[name]) for name, x in g.items()}
