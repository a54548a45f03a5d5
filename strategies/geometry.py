"""How the updates of a round lie to one another: all that many-client formulas need, in m x m numbers."""

import numpy as np

from strategies.round import Round, Vector


def deviation_products(round_: Round) -> Vector:
    """Inner products of the updates' deviations from their coordinates' median, of the whole model, (m, m).

    Around it, not around zero: differences of near-equal updates then keep their digits. Nor around the
    mean, which one huge update moves so far that the others' differences are lost.
    """
    size = len(round_.replies)
    total = np.zeros((size, size))
    for name in round_.model:
        rows = np.stack([np.asarray(r.update[name], dtype=np.float64).ravel() for r in round_.replies])
        rows -= np.median(rows, axis=0)
        # Not rows @ rows.T: with BLAS the number of threads would change the last bits.
        total += np.einsum("ip,jp->ij", rows, rows)
    return total


def squared_distances(products: Vector) -> Vector:
    """Squared distances of all pairs from their products, (m, m), not negative."""
    own = np.diag(products)
    distances: Vector = (own[:, None] + own[None, :] - 2.0 * products).clip(min=0.0)
    return distances


def around(point: Vector, products: Vector) -> Vector:
    """Products of the deviations from ``sum_i point_i D_i``; ``point`` (m,) sums to one."""
    shift = products @ point
    shifted: Vector = products - shift[:, None] - shift[None, :] + point @ shift
    return shifted
