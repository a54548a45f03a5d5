"""Class-wise alignment of a client's head update with the cohort's: the signal of ShapFed.

    g_c = sum_j w_j m_{j,c}      Gamma_i = mean_c cos(m_{i,c}, g_c)      mapped to (1 + Gamma_i) / 2

``m_{i,c}`` is row ``c`` of the head's update with the bias appended, ``w_j`` the previous round's weight.
The ShapFed paper calls this a Shapley value, but only the grand coalition enters; there are no marginal
contributions in it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from strategies.round import Round, Vector
from strategies.signals import Reading, Signal

ROUNDING = 1e-12  # relative; a shorter row is what float64 leaves of zero


def alignments(rows: Sequence[Vector], weights: Vector) -> Vector:
    """Mapped mean cosine of each client's class rows with the weighted sum, m of (classes, d) -> (m,).

    Between 0 and 1; 1/2 for a client that did not move, and for all when no class has a direction.
    A client's rows are first clipped to the cohort's median norm, so that size does not buy alignment
    with oneself. Classes whose summed row is zero are left out of the mean.
    """
    mapped: Vector = (1.0 + raw_alignments(rows, weights)) / 2.0
    return mapped


def raw_alignments(rows: Sequence[Vector], weights: Vector) -> Vector:
    """The mean cosine as both papers print it, before the map: -1 to 1, m of (classes, d) -> (m,)."""
    lengths = np.stack([_lengths(own) for own in rows])  # (m, classes)
    total = _sum(rows, weights * _clips(lengths))
    target = _lengths(total)
    return np.array([_mean_cosine(own, total, n, target) for own, n in zip(rows, lengths, strict=True)])


def leave_one_out_alignments(rows: Sequence[Vector], weights: Vector) -> Vector:
    """Each client's mean cosine with the sum of the others, -1 to 1, m of (classes, d) -> (m,).

    Free of self-inclusion, but no gate: when data differ much between clients, honest ones are negative.
    A class that only this client moved counts as cosine 0; one without direction in the whole sum is
    left out.
    """
    lengths = np.stack([_lengths(own) for own in rows])  # (m, classes)
    factors = weights * _clips(lengths)
    total = _sum(rows, factors)
    whole = _lengths(total)
    values = []
    for own, n, factor in zip(rows, lengths, factors.tolist(), strict=True):
        others = total - factor * own
        # What is left of a class after rounding, when the others' rows cancel or are zero, is no direction.
        target = np.where(_lengths(others) <= ROUNDING * (whole + factor * n), 0.0, _lengths(others))
        values.append(_mean_cosine(own, others, n, target, whole > 0))
    return np.array(values)


def alignment(round_: Round, weights: Vector) -> Reading:
    """The alignment of each client's head update with the cohort's."""
    return Reading(alignments(round_.head_rows(), weights))


def raw_alignment(round_: Round, weights: Vector) -> Reading:
    """The alignment before the map to 0..1."""
    return Reading(raw_alignments(round_.head_rows(), weights))


def leave_one_out_alignment(round_: Round, weights: Vector) -> Reading:
    """The alignment of each client's head update with that of the others."""
    return Reading(leave_one_out_alignments(round_.head_rows(), weights))


def not_negative(signal: Signal) -> Signal:
    """The same signal to weigh by: a value below 0 counts as 0, with a note that says whose it was.

    A client opposed to the others then weighs nothing; if all are, the signal has no positive sum, and
    scorers and weightings go on without it.
    """

    def clamped(round_: Round, weights: Vector) -> Reading:
        reading = signal(round_, weights)
        below = [
            f"{client} ({value:.2f})"
            for client, value in zip(round_.clients, reading.values.tolist(), strict=True)
            if value < 0
        ]
        note = f"negative alignments count as 0: {', '.join(below)}" if below else ""
        return replace(reading, values=np.maximum(reading.values, 0.0), note=note)

    return clamped


VARIANTS: dict[str, Signal] = {
    "mapped": alignment,
    "raw": not_negative(raw_alignment),
    "leave-one-out": not_negative(leave_one_out_alignment),
}


def _sum(rows: Sequence[Vector], factors: Vector) -> Vector:
    total = np.zeros_like(rows[0])
    for own, factor in zip(rows, factors.tolist(), strict=True):
        total += factor * own
    return total


def _mean_cosine(
    own: Vector, other: Vector, n: Vector, target: Vector, counted: NDArray[np.bool_] | None = None
) -> float:
    """Mean of the row-wise cosines of two (classes, d) whose rows have lengths ``n`` and ``target``.

    Over the counted rows: where ``other`` has a direction, if nothing else is said; 0 if none counts.
    """
    counted = target > 0 if counted is None else counted
    if not counted.any():
        return 0.0
    dots = np.einsum("cd,cd->c", own, other)
    lengths = n * target
    # A row that did not move has no direction: cosine 0.
    cosines = np.where(lengths > 0, dots / np.where(lengths > 0, lengths, 1.0), 0.0)
    return float(cosines[counted].clip(-1.0, 1.0).mean())


def _lengths(rows: Vector) -> Vector:
    lengths: Vector = np.sqrt(np.einsum("cd,cd->c", rows, rows))
    return lengths


def _clips(lengths: Vector) -> Vector:
    """The factors, at most 1, that bring each client down to the median norm of those that moved.

    From the lengths of its rows, (m, classes).
    """
    norms = np.linalg.norm(lengths, axis=1)
    if not norms.any():
        return np.ones(len(norms))
    limit = np.median(norms[norms > 0])
    factors: Vector = limit / np.maximum(norms, limit)
    return factors
