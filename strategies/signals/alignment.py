"""Class-wise alignment of a client's head update with the cohort's: the signal of ShapFed.

    g_c = sum_j w_j m_{j,c}      Gamma_i = mean_c cos(m_{i,c}, g_c)      mapped to (1 + Gamma_i) / 2

``m_{i,c}`` is row ``c`` of the head's update with the bias appended, ``w_j`` the previous round's weight.
The ShapFed paper calls this a Shapley value, but only the grand coalition enters; there are no marginal
contributions in it.
"""

import numpy as np

from strategies.round import Round, Vector
from strategies.signals import Reading


def alignments(rows: Vector, weights: Vector) -> Vector:
    """Mapped mean cosine of each client's class rows with the weighted sum, (m, classes, d) -> (m,).

    Between 0 and 1; 1/2 for a client that did not move, and for all when no class has a direction.
    A client's rows are first clipped to the cohort's median norm, so that size does not buy alignment
    with oneself. Classes whose summed row is zero are left out of the mean.
    """
    clipped = _clip_to_median(rows)
    total = np.einsum("j,jcd->cd", weights, clipped)  # (classes, d)
    lengths = np.linalg.norm(total, axis=1)
    directed = lengths > 0
    if not directed.any():
        return np.full(len(rows), 0.5)
    own = np.linalg.norm(clipped, axis=2)[:, directed]  # (m, directed classes)
    dots = np.einsum("jcd,cd->jc", clipped[:, directed], total[directed])
    # A row that did not move has no direction: cosine 0.
    cosines = np.where(own > 0, dots / np.where(own > 0, own * lengths[directed], 1.0), 0.0)
    mapped: Vector = (1.0 + cosines.clip(-1.0, 1.0).mean(axis=1)) / 2.0
    return mapped


def alignment(round_: Round, weights: Vector) -> Reading:
    """The alignment of each client's head update with the cohort's."""
    return Reading(alignments(round_.head_rows(), weights))


def _clip_to_median(rows: Vector) -> Vector:
    norms = np.linalg.norm(rows.reshape(len(rows), -1), axis=1)
    if not norms.any():
        return rows
    limit = np.median(norms[norms > 0])
    clipped: Vector = rows * (limit / np.maximum(norms, limit))[:, None, None]
    return clipped
