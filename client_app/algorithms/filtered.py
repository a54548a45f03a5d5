"""A gradient filter around any local algorithm."""

from dataclasses import dataclass
from typing import final

from client_app.algorithms.rule import LocalContext, LocalRule
from common.params import Params, ParamsFilter


@final
@dataclass(frozen=True)
class Filtered(LocalRule):
    """``rule``, whose data gradient is filtered first.

    Only the data gradient is: what the rule adds to it (a proximal term, a control variate, a server's
    momentum), clipping, weight decay and momentum come later and stay unfiltered (SpecGradFilter).
    """

    rule: LocalRule
    gradient: ParamsFilter

    def direction(self, g: Params, w: Params, ctx: LocalContext) -> Params:
        """The rule's direction for the filtered gradient."""
        return self.rule.direction(self.gradient(g), w, ctx)
