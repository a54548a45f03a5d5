"""How much a site's noise hides."""

from math import exp, sqrt

from scipy.optimize import brentq
from scipy.special import log_ndtr

DELTA = 1e-5


def epsilon(noise: float, rounds: int, delta: float = DELTA) -> float:
    """The least epsilon for which ``rounds`` updates of a site are (epsilon, delta)-differentially private.

    Each update is clipped to a norm and bears Gaussian noise of ``noise`` such norms, ``noise`` > 0. Exchange
    rows of the site, one or all: a clipped update moves by two norms at most. So the rounds together, each of
    which may depend on what the earlier ones sent, hide as much as one with ``mu = 2 sqrt(rounds) / noise``
    (Gaussian differential privacy, Dong, Roth & Su, 2022), whose delta is exactly ``Phi(mu/2 - eps/mu) -
    e^eps Phi(-mu/2 - eps/mu)`` (Balle & Wang, 2018, Theorem 8). That the noise is rounded to floats is not
    counted. Grows with rounds, falls with noise and delta; 0 if delta alone covers it.
    """
    mu = 2 * sqrt(rounds) / noise

    def excess(eps: float) -> float:
        return exp(log_ndtr(mu / 2 - eps / mu)) - exp(eps + log_ndtr(-mu / 2 - eps / mu)) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-9))
