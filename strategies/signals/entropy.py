"""Von Neumann entropy of the head's update: the signal of SpectralFed.

    lambda = singular values of M, squared      p = lambda / sum(lambda)      S = -sum p ln p

A client whose data hold many classes moves the head in many directions, one with few classes in few.
The trace normalisation (Eq. 9 and 11 of the paper) is used. The Frobenius one of its Eq. 12 is not the
same up to a factor, as the paper says; it can even reverse an order.

Clients are read one after the other, in float64 copies of one matrix at a time: a hundred heads of 1000 x
2048 at once would take gigabytes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from common.errors import ModelError, nearest
from strategies.round import Round, Vector
from strategies.signals import Reading, Signal

NO_UPDATE = 1e-15  # a Frobenius norm up to this is no update at all
RANK_ONE = 1e-6  # normalised entropies below this are rounding noise around rank one
WIDEST = 4096  # of a weight's shorter side: eigenvalues of a wider one take minutes a round

Matrix = NDArray[np.generic]
Measure = Callable[[Iterable[Matrix]], Vector]


def entropies(matrices: Iterable[Matrix]) -> Vector:
    """Von Neumann entropy in nats of each matrix, m of (rows, columns) -> (m,).

    Between 0 and ln(min(rows, columns)). 0 for rank one and for a zero matrix. Unchanged by scaling
    (sign included), transposition and rotation. Computed from the eigenvalues of the Gram matrix on the
    short side.
    """
    return np.array([_plogp(p / (p.sum() or 1.0)) for p in _spectra(matrices)])


def frobenius_entropies(matrices: Iterable[Matrix]) -> Vector:
    """The measure of the paper's Eq. 12, ``-sum q ln q`` with q = lambda / |lambda|, m of (r, c) -> (m,).

    The q do not sum to one, so this is no entropy: it equals ``k (S - ln k)`` with k = 1 / |p|, and k
    differs from client to client. Never negative; 0 for rank one and for a zero matrix.
    """
    return np.array([_plogp(p / (np.linalg.norm(p) or 1.0)) for p in _spectra(matrices)])


MEASURES: dict[str, Measure] = {"trace": entropies, "frobenius": frobenius_entropies}


def head_entropy(measure: Measure = entropies) -> Signal:
    """The signal that reads each client's head update.

    Unavailable, because every honest update then has rank one or nothing to tell: heads of two classes
    or fewer, and rounds in which no update reaches a normalised entropy of 1e-6. Also for heads whose
    shorter side exceeds 4096.
    """

    def signal(round_: Round, weights: Vector) -> Reading:
        classes, width = round_.head.shape[0], int(np.prod(round_.head.shape[1:]))
        if min(classes, width) <= 1 or classes <= 2:
            why = f"a head of {classes} x {width} gives every honest update rank one"
            return _off(round_, why)
        return _reading(round_, round_.head.weight, "head", measure)

    return signal


def entropy(round_: Round, weights: Vector) -> Reading:
    """The entropy of each client's head update, with the trace normalisation."""
    return head_entropy()(round_, weights)


def entropy_of(parameter: str, measure: Measure = entropies) -> Signal:
    """The same signal for another weight of the model, kernels flattened to a row an output.

    Reading it raises ModelError if the model has no parameter of that name with two axes or more.
    Unavailable for a single row or column, for a shorter side over 4096, and when no update says more
    than rank one.
    """

    def signal(round_: Round, weights: Vector) -> Reading:
        check_layer(parameter, round_.model)
        shape = round_.model[parameter].shape
        if min(shape[0], int(np.prod(shape[1:]))) <= 1:
            return _off(round_, f'"{parameter}" is a single row or column')
        return _reading(round_, parameter, f'"{parameter}"', measure)

    return signal


def check_layer(parameter: str, model: Mapping[str, Matrix]) -> None:
    """Raise ModelError unless the model has a trainable parameter of that name and two axes or more."""
    known = [name for name, x in model.items() if x.ndim > 1]
    if parameter in known:
        return
    hint = nearest(parameter, known) or f"It takes one of {', '.join(known[-12:])}"
    what = f"it has shape {model[parameter].shape}" if parameter in model else "there is none"
    raise ModelError(
        f'entropy-layer "{parameter}" must be a trainable parameter of two or more axes; {what}. {hint}'
    )


def _reading(round_: Round, parameter: str, what: str, measure: Measure) -> Reading:
    rows, columns = (n := round_.model[parameter].shape)[0], int(np.prod(n[1:]))
    if min(rows, columns) > WIDEST:
        why = f"{what} has {rows} x {columns} numbers and takes at most {WIDEST} on its shorter side"
        return _off(round_, f"{why}; name a smaller weight with the key entropy-layer")
    values = measure(reply.update[parameter].reshape(rows, columns) for reply in round_.replies)
    if values.max() / np.log(min(rows, columns)) < RANK_ONE:
        return _off(round_, f"every {what} update has rank one or is zero")
    return Reading(values)


def _off(round_: Round, why: str) -> Reading:
    return Reading(np.full(len(round_.replies), np.nan), f"entropy is off: {why}")


def _spectra(matrices: Iterable[Matrix]) -> Iterator[Vector]:
    """The spectrum of each matrix, lying down."""
    work = np.empty(())
    for matrix in matrices:
        short = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
        if work.shape != short.shape:  # one for all: new memory for each head costs more than its product
            work = np.empty(short.shape)
        np.copyto(work, short)
        yield _spectrum(work)


def _spectrum(matrix: Vector) -> Vector:
    """Squared singular values of a matrix up to a factor, (rows,); all zero for no update."""
    with np.errstate(over="ignore", invalid="ignore"):
        gram: Vector = matrix @ matrix.T
    trace = np.trace(gram)
    if not np.isfinite(trace):  # the squares of a huge update
        return _spectrum(matrix / np.abs(matrix).max())
    if trace <= NO_UPDATE**2:
        return np.zeros(len(gram))
    eigenvalues = np.linalg.eigvalsh(gram)
    # Below this an eigenvalue of the Gram matrix is rounding noise of the largest one.
    noise = eigenvalues[-1] * len(eigenvalues) * np.finfo(np.float64).eps
    kept: Vector = np.where(eigenvalues > noise, eigenvalues, 0.0)
    return kept


def _plogp(p: Vector) -> float:
    return float(-(p * np.log(np.where(p > 0, p, 1.0))).sum()) + 0.0  # no minus zero
