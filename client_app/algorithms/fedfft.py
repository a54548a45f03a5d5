"""FedFFT (OpenReview PDYQuxyAYI): SAM whose perturbation loses its low frequencies.

e = Phi(rho g / ||g||)      y <- y - eta grad f(y + e)

Derived from the abstract; the paper's text was not available to us. The abstract names the perturbation as
what is filtered, so the descent gradient is not: that would be SpecGradFilter, and the two can be on
together. Read literally, the offset is normalised first and filtered second, which shortens it (to 0.4 to 0.8
of rho in our check); with ``renorm`` it gets its length back.
"""

from client_app.algorithms.rule import Algorithm, Ascent, Sites
from common.params import Params, ParamsFilter, length


def fedfft(ascent: Ascent, phi: ParamsFilter, renorm: bool = False) -> Algorithm:
    """An ascent without its low band."""
    return Algorithm(ascent=ascent, sites=Sites(perturbation=_as_long(phi) if renorm else phi))


def _as_long(phi: ParamsFilter) -> ParamsFilter:
    """``phi`` of an offset, as long as the offset was."""

    def filtered(offset: Params) -> Params:
        left = phi(offset)
        factor = length(offset) / length(left).clamp(min=1e-12)
        return {name: factor * x for name, x in left.items()}

    return filtered
