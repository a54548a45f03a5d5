"""Linear CKA (Kornblith et al., 2019): do two models see the same rows alike?

With features X and Y, rows by units, columns centred::

    CKA = ||Y^T X||_F^2 / (||X^T X||_F ||Y^T Y||_F)  =  <K, L> / (||K|| ||L||)      K = X X^T,  L = Y Y^T

It is the cosine of two centred Gram matrices, so it does not see rotations and scale of the features. With
few rows, or fewer rows than units, it lies near 1 for unrelated features too; then the Gram matrices are
centred as the unbiased estimator of HSIC does it (Song et al., 2012).
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from strategies.round import Vector

MANY_ROWS = 1000  # from so many rows on, if they are more than units, the plain estimator will do
FEWEST_ROWS = 4  # that the unbiased estimator takes
NOTHING = 1e-12  # a centred Gram matrix below this part of the one before is rounding error


def linear_cka(x: NDArray[np.generic], y: NDArray[np.generic], unbiased: bool | None = None) -> float | None:
    """The CKA of features (n, p) and (n, q) of the same n rows; ``None`` where it is not defined.

    In [0, 1]; the unbiased estimate may fall below 0. Not defined for features that are the same for all
    rows or not finite, for one row, and for fewer than four rows if unbiased. ``unbiased`` defaults to
    what the number of rows asks for.
    """
    one, other = unit_gram(x, _choice(x, y, unbiased)), unit_gram(y, _choice(x, y, unbiased))
    return None if one is None or other is None else float(np.clip(np.sum(one * other), -1.0, 1.0))


def mean_cka(features: Iterable[NDArray[np.generic]], unbiased: bool | None = None) -> float | None:
    """The mean CKA over all pairs of models, from features (n, p) of the same n rows, one model at a time.

    Models of which the CKA is not defined are left out; ``None`` if fewer than two remain. Holds three
    (n, n) matrices, however many models there are: of unit vectors, the mean cosine over pairs follows from
    the norm of their sum.
    """
    total: Vector | float = 0.0
    count = 0
    for x in features:
        gram = unit_gram(x, _choice(x, x, unbiased))
        if gram is not None:
            total, count = total + gram, count + 1
    if count < 2:
        return None
    squared = float(np.sum(np.square(total)))
    return float(np.clip((squared - count) / (count * (count - 1)), -1.0, 1.0))


def unit_gram(x: NDArray[np.generic], unbiased: bool) -> Vector | None:
    """The centred Gram matrix (n, n) of features (n, p), divided by its Frobenius norm.

    ``None`` if there is nothing to divide by, or the features are not finite.
    """
    n = len(x)
    wide = np.asarray(x, dtype=np.float64).reshape(n, -1)
    if n < (FEWEST_ROWS if unbiased else 2) or not np.isfinite(wide).all():
        return None
    largest = float(np.abs(wide).max(initial=0.0))
    if largest == 0:
        return None
    wide = wide / largest  # so that no square of a square overflows
    before = float(np.square(wide).sum())
    wide -= wide.mean(axis=0)
    gram = wide @ wide.T
    if unbiased:
        _u_centre(gram)
    size = float(np.linalg.norm(gram))
    return None if size <= NOTHING * before else gram / size


def _u_centre(gram: Vector) -> None:
    """Centre in place so that ``sum(K * L) / (n (n - 3))`` of two is the unbiased HSIC."""
    n = len(gram)
    np.fill_diagonal(gram, 0.0)
    sums = gram.sum(axis=0)
    gram -= sums[:, None] / (n - 2) + sums[None, :] / (n - 2) - sums.sum() / ((n - 1) * (n - 2))
    np.fill_diagonal(gram, 0.0)


def _choice(x: NDArray[np.generic], y: NDArray[np.generic], unbiased: bool | None) -> bool:
    n, widest = len(x), max(x.size, y.size) // max(len(x), 1)
    return n < MANY_ROWS or n <= widest if unbiased is None else unbiased
