"""The size of each update: how far a client moved the whole model."""

import numpy as np

from common.params import norm
from strategies.round import Round, Vector
from strategies.signals import Reading


def norms(round_: Round) -> Vector:
    """The L2 norm of each whole update, (m,)."""
    return np.array([norm(reply.update) for reply in round_.replies])


def typical(sizes: Vector) -> float:
    """The median of the norms that are not zero, (m,) -> a number; 0 if all are zero.

    Clients that did not move do not count: were they the majority, the typical size would be nothing.
    """
    return float(np.median(sizes[sizes > 0])) if (sizes > 0).any() else 0.0


def relative_norm(round_: Round, weights: Vector) -> Reading:
    """Each update's norm over the typical one of the round. Unavailable if nobody moved."""
    sizes = norms(round_)
    median = typical(sizes)
    if median == 0:
        return Reading(np.full(len(sizes), np.nan), "relative norm is off: every update is zero")
    return Reading(sizes / median)
