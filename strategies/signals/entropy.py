"""Von Neumann entropy of the head's update: the signal of SpectralFed.

    lambda = singular values of M, squared      p = lambda / sum(lambda)      S = -sum p ln p

A client whose data hold many classes moves the head in many directions, one with few classes in few.
The trace normalisation (Eq. 9 and 11 of the paper) is used. The Frobenius one of its Eq. 12 is not the
same up to a factor, as the paper says; it can even reverse an order.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.errors import nearest
from strategies.round import Round, Vector
from strategies.signals import Reading, Signal

Matrices = NDArray[np.generic] | Sequence[NDArray[np.generic]]  # m of (rows, columns)

NO_UPDATE = 1e-15  # a Frobenius norm up to this is no update at all
RANK_ONE = 1e-6  # normalised entropies below this are rounding noise around rank one


def entropies(matrices: Matrices) -> Vector:
    """Von Neumann entropy in nats of each matrix of a stack, (m, rows, columns) -> (m,).

    Between 0 and ln(min(rows, columns)). 0 for rank one and for a zero matrix. Unchanged by scaling
    (sign included), transposition and rotation. Computed from the eigenvalues of the Gram matrix on the
    short side.
    """
    eigenvalues = _spectra(matrices)
    trace = eigenvalues.sum(axis=1, keepdims=True)
    return _plogp(eigenvalues / np.where(trace > 0, trace, 1.0))


def frobenius_entropies(matrices: Matrices) -> Vector:
    """The measure of the paper's Eq. 12, ``-sum q ln q`` with q = lambda / |lambda|, (m, r, c) -> (m,).

    The q do not sum to one, so this is no entropy: it equals ``k (S - ln k)`` with k = 1 / |p|, and k
    differs from client to client. For comparison only.
    """
    eigenvalues = _spectra(matrices)
    length = np.linalg.norm(eigenvalues, axis=1, keepdims=True)
    return _plogp(eigenvalues / np.where(length > 0, length, 1.0))


def entropy(round_: Round, weights: Vector) -> Reading:
    """The entropy of each client's head update.

    Unavailable, because every honest update then has rank one or nothing to tell: heads of two classes
    or fewer, and rounds in which no update reaches a normalised entropy of 1e-6.
    """
    matrices = round_.head_weights()
    classes, width = matrices[0].shape
    if min(classes, width) <= 1 or classes <= 2:
        why = f"a head of {classes} x {width} gives every honest update rank one"
        return Reading(np.full(len(matrices), np.nan), f"entropy is off: {why}")
    return _reading(matrices, "head")


def entropy_of(parameter: str) -> Signal:
    """The same signal for another weight of the model, kernels flattened to a row an output.

    Reading it raises ValueError if the model has no parameter of that name with two axes or more.
    Unavailable for a single row or column, and when no update says more than rank one.
    """

    def signal(round_: Round, weights: Vector) -> Reading:
        known = sorted(name for name, x in round_.model.items() if x.ndim > 1)
        if parameter not in known:
            raise ValueError(f'the model has no weight "{parameter}". {nearest(parameter, known)}'.rstrip())
        updates = [reply.update[parameter] for reply in round_.replies]
        matrices = [x.reshape(x.shape[0], -1) for x in updates]
        if min(matrices[0].shape) <= 1:
            why = f'"{parameter}" is a single row or column'
            return Reading(np.full(len(matrices), np.nan), f"entropy is off: {why}")
        return _reading(matrices, parameter)

    return signal


def _reading(matrices: Matrices, what: str) -> Reading:
    values = entropies(matrices)
    if values.max() / np.log(min(matrices[0].shape)) < RANK_ONE:
        why = f"every {what} update has rank one or is zero"
        return Reading(np.full(len(matrices), np.nan), f"entropy is off: {why}")
    return Reading(values)


def _spectra(matrices: Matrices) -> Vector:
    """Squared singular values of each matrix up to a factor a matrix, (m, min(rows, columns)).

    All zero for a matrix that is no update at all.
    """
    # One by one: what one matrix needs stays in the cache, a stack of a hundred heads does not.
    return np.stack([_spectrum(np.asarray(m, dtype=np.float64)) for m in matrices])


def _spectrum(matrix: Vector) -> Vector:
    short = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    with np.errstate(over="ignore"):
        gram = short @ short.T
    trace = np.trace(gram)
    if not np.isfinite(trace):  # squares of huge updates
        return _spectrum(matrix / np.abs(matrix).max())
    if trace <= NO_UPDATE**2:
        return np.zeros(len(gram))
    eigenvalues = np.linalg.eigvalsh(gram)
    # Below this an eigenvalue of the Gram matrix is rounding noise of the largest one.
    return np.where(eigenvalues > eigenvalues[-1] * len(gram) * np.finfo(np.float64).eps, eigenvalues, 0.0)


def _plogp(p: Vector) -> Vector:
    entropy: Vector = -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=1) + 0.0  # no minus zero
    return entropy
