"""Von Neumann entropy of the head's update: the signal of SpectralFed.

    lambda = singular values of M, squared      p = lambda / sum(lambda)      S = -sum p ln p

A client whose data hold many classes moves the head in many directions, one with few classes in few.
The trace normalisation (Eq. 9 and 11 of the paper) is used. The Frobenius one of its Eq. 12 is not the
same up to a factor, as the paper says; it can even reverse an order.
"""

import numpy as np

from common.errors import nearest
from strategies.round import Round, Vector
from strategies.signals import Reading, Signal

NO_UPDATE = 1e-15  # a Frobenius norm up to this is no update at all
RANK_ONE = 1e-6  # normalised entropies below this are rounding noise around rank one


def entropies(matrices: Vector) -> Vector:
    """Von Neumann entropy in nats of each matrix of a stack, (m, rows, columns) -> (m,).

    Between 0 and ln(min(rows, columns)). 0 for rank one and for a zero matrix. Unchanged by scaling
    (sign included), transposition and rotation. Computed from the eigenvalues of the Gram matrix on the
    short side.
    """
    eigenvalues = _spectra(matrices)
    trace = eigenvalues.sum(axis=1, keepdims=True)
    return _plogp(eigenvalues / np.where(trace > 0, trace, 1.0))


def frobenius_entropies(matrices: Vector) -> Vector:
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
    classes, width = matrices.shape[1:]
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
        rows = [np.asarray(reply.update[parameter], dtype=np.float64) for reply in round_.replies]
        matrices = np.stack([x.reshape(x.shape[0], -1) for x in rows])
        if min(matrices.shape[1:]) <= 1:
            why = f'"{parameter}" is a single row or column'
            return Reading(np.full(len(matrices), np.nan), f"entropy is off: {why}")
        return _reading(matrices, parameter)

    return signal


def _reading(matrices: Vector, what: str) -> Reading:
    values = entropies(matrices)
    if values.max() / np.log(min(matrices.shape[1:])) < RANK_ONE:
        why = f"every {what} update has rank one or is zero"
        return Reading(np.full(len(matrices), np.nan), f"entropy is off: {why}")
    return Reading(values)


def _spectra(matrices: Vector) -> Vector:
    """Squared singular values of each matrix up to a factor a matrix, (m, min(rows, columns)).

    All zero for a matrix that is no update at all.
    """
    short = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.transpose(0, 2, 1)
    scale = np.abs(short).max(axis=(1, 2), keepdims=True)
    unit = short / np.where(scale > 0, scale, 1.0)  # squares of tiny or huge updates stay in range
    eigenvalues = np.linalg.eigvalsh(unit @ unit.transpose(0, 2, 1)).clip(min=0.0)
    # Below this an eigenvalue of the Gram matrix is rounding noise of the largest one.
    noise = eigenvalues[:, -1:] * eigenvalues.shape[1] * np.finfo(np.float64).eps
    norms = np.sqrt(np.where(eigenvalues > noise, eigenvalues, 0.0).sum(axis=1, keepdims=True))
    moved = norms * scale[:, 0] > NO_UPDATE
    return np.where(moved & (eigenvalues > noise), eigenvalues, 0.0)


def _plogp(p: Vector) -> Vector:
    entropy: Vector = -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=1) + 0.0  # no minus zero
    return entropy
