"""MoFedSAM (Qu et al., ICML 2022): FedSAM's gradient in FedCM's mixture.

e = rho g / ||g||      y <- y - eta (a grad f(y + e) + (1 - a) v)

The offset is made from the node's own gradient alone. ``rho`` 0 is FedCM.
"""

from client_app.algorithms.fedcm import FedCM
from client_app.algorithms.rule import Algorithm, Ascent


def mofedsam(ascent: Ascent, mix: float, warm_start: bool = False) -> Algorithm:
    """SAM's look ahead, the server's momentum."""
    return Algorithm(FedCM(mix, warm_start), ascent)
