"""Loss scaling for float16, in which small gradients would vanish: the loss is multiplied first.

PyTorch's own scaler works on an optimiser object; ours must see gradients before they are filtered, because
one infinity would spread over a whole filtered tensor.
"""

from dataclasses import dataclass, replace
from typing import Self

from common.params import Params, length, scale


@dataclass(frozen=True)
class LossScale:
    """The factor, a power of two, and how many steps in a row it was not too large."""

    factor: float = 2.0**16
    good: int = 0
    growth: int = 2000  # good steps until a larger factor is tried

    def unscaled(self, g: Params) -> Params:
        """Gradients of the loss itself."""
        return scale(1 / self.factor, g)

    def after(self, finite: bool) -> Self:
        """Half the factor after an overflow; twice the factor after ``growth`` good steps."""
        if not finite:
            return replace(self, factor=self.factor / 2, good=0)
        if self.good + 1 == self.growth:
            return replace(self, factor=self.factor * 2, good=0)
        return replace(self, good=self.good + 1)


def is_finite(g: Params) -> bool:
    """Whether no gradient overflowed. Waits for the device."""
    return bool(length(g).isfinite())
