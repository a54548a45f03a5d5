"""FedGAMMA (Dai et al., IEEE TNNLS 2023): FedSAM's gradient with SCAFFOLD's correction.

e = rho g / ||g||      y <- y - eta (grad f(y + e) - c_i + c)

``c_i`` and ``c`` are SCAFFOLD's (option II), and so estimate gradients at the offset. The offset itself is
made from the plain local gradient. ``rho`` 0 is SCAFFOLD.
"""

from client_app.algorithms.rule import Algorithm, Ascent
from client_app.algorithms.scaffold import Scaffold


def fedgamma(ascent: Ascent) -> Algorithm:
    """SAM's look ahead, SCAFFOLD's correction."""
    return Algorithm(Scaffold(), ascent)
