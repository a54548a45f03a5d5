"""FedFFT (OpenReview PDYQuxyAYI): SAM whose perturbation loses its low frequencies.

e = Phi(rho g / ||g||)      y <- y - eta grad f(y + e)

Derived from the abstract; the paper's text was not available to us. The abstract names the perturbation as
what is filtered, so the descent gradient is not: that would be SpecGradFilter, and the two can be on
together. Read literally, the offset is normalised first and filtered second, which shortens it (to 0.4 to 0.8
of rho in our check); with ``renorm`` the gradient is filtered before it is normalised, and the length is rho.
"""

from client_app.algorithms.rule import Algorithm, Ascent, Sites
from common.params import ParamsFilter


def fedfft(ascent: Ascent, phi: ParamsFilter, renorm: bool = False) -> Algorithm:
    """An ascent without its low band."""
    sites = Sites(ascent=phi) if renorm else Sites(perturbation=phi)
    return Algorithm(ascent=ascent, sites=sites)
