"""Class-wise alignment of a client's head update with the cohort's: the signal of ShapFed.

    g_c = sum_j w_j m_{j,c}      Gamma_i = mean_c cos(m_{i,c}, g_c)      mapped to (1 + Gamma_i) / 2

``m_{i,c}`` is row ``c`` of the head's update with the bias appended, ``w_j`` the previous round's weight.
The ShapFed paper calls this a Shapley value, but only the grand coalition enters; there are no marginal
contributions in it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from strategies.round import Round, Vector
from strategies.signals import Reading

Rows = NDArray[np.generic] | Sequence[NDArray[np.generic]]  # m of (classes, d)


def alignments(rows: Rows, weights: Vector) -> Vector:
    """Mapped mean cosine of each client's class rows with the weighted sum, (m, classes, d) -> (m,).

    Between 0 and 1; 1/2 for a client that did not move, and for all when no class has a direction.
    A client's rows are first clipped to the cohort's median norm, so that size does not buy alignment
    with oneself. Classes whose summed row is zero are left out of the mean.
    """
    mapped: Vector = (1.0 + raw_alignments(rows, weights)) / 2.0
    return mapped


def raw_alignments(rows: Rows, weights: Vector) -> Vector:
    """The mean cosine as both papers print it, before the map: -1 to 1, (m, classes, d) -> (m,).

    Something to read, not to weigh by: shares of numbers with both signs can be negative or huge.
    """
    factors = weights * _clip_factors(rows)
    cosines = []
    # Class by class: what a class needs stays in the cache, a stack of a hundred heads does not.
    for c in range(len(rows[0])):
        own = np.array([client[c] for client in rows], dtype=np.float64)  # (m, d)
        total = factors @ own
        lengths = np.sqrt(np.vecdot(own, own)) * np.linalg.norm(total)
        if total.any():
            # A row that did not move has no direction: cosine 0.
            cosines.append(np.where(lengths > 0, (own @ total) / np.where(lengths > 0, lengths, 1.0), 0.0))
    if not cosines:
        return np.zeros(len(rows))
    means: Vector = np.stack(cosines).clip(-1.0, 1.0).mean(axis=0)
    return means


def leave_one_out_alignments(rows: Rows, weights: Vector) -> Vector:
    """Each client's mean cosine with the sum of the others, -1 to 1, (m, classes, d) -> (m,).

    Free of self-inclusion, but no gate: when data differ much between clients, honest ones are negative.
    A class that only this client moved counts as cosine 0; one without direction in the whole sum is
    left out.
    """
    clipped = np.asarray(rows, dtype=np.float64) * _clip_factors(rows)[:, None, None]
    parts = weights[:, None, None] * clipped
    others = np.stack([np.delete(parts, i, axis=0).sum(axis=0) for i in range(len(rows))])
    return _mean_cosines(clipped, others, np.linalg.norm(parts.sum(axis=0), axis=1) > 0)


def alignment(round_: Round, weights: Vector) -> Reading:
    """The alignment of each client's head update with the cohort's."""
    return Reading(alignments(round_.head_rows(), weights))


def raw_alignment(round_: Round, weights: Vector) -> Reading:
    """The alignment before the map to 0..1."""
    return Reading(raw_alignments(round_.head_rows(), weights))


def leave_one_out_alignment(round_: Round, weights: Vector) -> Reading:
    """The alignment of each client's head update with that of the others."""
    return Reading(leave_one_out_alignments(round_.head_rows(), weights))


def _mean_cosines(rows: Vector, targets: Vector, counted: NDArray[np.bool_]) -> Vector:
    """Mean over the counted classes of the cosines of rows and targets, both (m, classes, d) -> (m,)."""
    if not counted.any():
        return np.zeros(len(rows))
    own, other = rows[:, counted], targets[:, counted]
    dots = np.einsum("jcd,jcd->jc", own, other)
    lengths = np.linalg.norm(own, axis=2) * np.linalg.norm(other, axis=2)
    # A row that did not move has no direction: cosine 0.
    cosines = np.where(lengths > 0, dots / np.where(lengths > 0, lengths, 1.0), 0.0)
    means: Vector = cosines.clip(-1.0, 1.0).mean(axis=1)
    return means


def _clip_factors(rows: Rows) -> Vector:
    """What brings each client's norm down to the cohort's median, (m,), at most 1."""
    norms = np.array([np.linalg.norm(np.asarray(client, dtype=np.float64)) for client in rows])
    if not norms.any():
        return np.ones(len(norms))
    limit = np.median(norms[norms > 0])
    factors: Vector = limit / np.maximum(norms, limit)
    return factors
