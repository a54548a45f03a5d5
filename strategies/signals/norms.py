"""The size of each update: how far a client moved the whole model."""

import numpy as np

from common.params import norm
from strategies.round import Round, Vector


def norms(round_: Round) -> Vector:
    """The L2 norm of each whole update, (m,)."""
    return np.array([norm(reply.update) for reply in round_.replies])


def typical(sizes: Vector) -> float:
    """The median of the norms that are not zero, (m,) -> a number; 0 if all are zero.

    Clients that did not move do not count: were they the majority, the typical size would be nothing.
    """
    return float(np.median(sizes[sizes > 0])) if (sizes > 0).any() else 0.0
