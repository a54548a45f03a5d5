"""Von Neumann entropy of the head's update: the signal of SpectralFed.

    lambda = singular values of M, squared      p = lambda / sum(lambda)      S = -sum p ln p

A client whose data hold many classes moves the head in many directions, one with few classes in few.
The trace normalisation (Eq. 9 and 11 of the paper) is used. The Frobenius one of its Eq. 12 is not the
same up to a factor, as the paper says; it can even reverse an order.
"""

import numpy as np

from strategies.round import Round, Vector
from strategies.signals import Reading

NO_UPDATE = 1e-15  # a Frobenius norm up to this is no update at all
RANK_ONE = 1e-6  # normalised entropies below this are rounding noise around rank one


def entropies(matrices: Vector) -> Vector:
    """Von Neumann entropy in nats of each matrix of a stack, (m, classes, d) -> (m,).

    Between 0 and ln(min(classes, d)). 0 for rank one and for a zero matrix. Unchanged by scaling
    (sign included), transposition and rotation. Computed from the eigenvalues of the Gram matrix on the
    short side.
    """
    short = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.transpose(0, 2, 1)
    scale = np.abs(short).max(axis=(1, 2), keepdims=True)
    unit = short / np.where(scale > 0, scale, 1.0)  # squares of tiny or huge updates stay in range
    eigenvalues = np.linalg.eigvalsh(unit @ unit.transpose(0, 2, 1)).clip(min=0.0)  # (m, min(classes, d))
    # Below this an eigenvalue of the Gram matrix is rounding noise of the largest one.
    noise = eigenvalues[:, -1:] * eigenvalues.shape[1] * np.finfo(np.float64).eps
    eigenvalues = np.where(eigenvalues > noise, eigenvalues, 0.0)
    trace = eigenvalues.sum(axis=1, keepdims=True)
    p = eigenvalues / np.where(trace > 0, trace, 1.0)
    entropy: Vector = -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=1) + 0.0  # no minus zero
    moved = np.sqrt(trace[:, 0]) * scale[:, 0, 0] > NO_UPDATE
    return np.where(moved, entropy, 0.0)


def entropy(round_: Round, weights: Vector) -> Reading:
    """The entropy of each client's head update.

    Unavailable, because every honest update then has rank one or nothing to tell: heads of two classes
    or fewer, and rounds in which no update reaches a normalised entropy of 1e-6.
    """
    matrices = round_.head_weights()
    classes, width = matrices.shape[1:]
    nothing = np.full(len(matrices), np.nan)
    if min(classes, width) <= 1 or classes <= 2:
        why = f"a head of {classes} x {width} gives every honest update rank one"
        return Reading(nothing, f"entropy is off: {why}")
    values = entropies(matrices)
    if values.max() / np.log(min(classes, width)) < RANK_ONE:
        return Reading(nothing, "entropy is off: every head update has rank one or is zero")
    return Reading(values)
