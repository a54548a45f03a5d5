"""How far the clients' gradients of one layer are from their mean, and from each other in direction.

The paper's layer divergence is the mean distance to the consensus. It falls under any projection, whatever
that takes away; so it never stands alone here: beside it are its ratio to the consensus' norm and the mean
cosine over pairs of clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategies.round import Vector

CHUNK = 1 << 16  # elements of each client that are looked at together
VANISHED = 1e-12  # a consensus below this part of the clients' norms is rounding error


@dataclass(frozen=True)
class Divergence:
    """One layer. ``None``: not defined for these clients."""

    absolute: float | None  # mean over the clients of ||g_k - consensus||
    relative: float | None  # the same, divided by ||consensus||
    cosine: float | None  # mean over the pairs in which no client sent zeros, in [-1, 1]


NOTHING = Divergence(None, None, None)


def divergence(
    rows: Sequence[NDArray[np.generic]], consensus: NDArray[np.generic] | None = None
) -> Divergence:
    """The divergence of one tensor, with one array a client; ``NOTHING`` for fewer than two clients.

    The consensus is the clients' mean. Pass another one to measure against it: with filtered rows and the
    mean of the unfiltered ones this is the paper's formula to the letter, in which the part of the mean that
    was filtered out counts as divergence. ``relative`` is not defined where the consensus vanishes,
    ``cosine`` where fewer than two clients sent something else than zeros.
    """
    if len(rows) < 2:
        return NOTHING
    flat = [np.ravel(row) for row in rows]
    middle = None if consensus is None else np.ravel(consensus)
    gram = np.zeros((len(rows), len(rows)))
    distances = np.zeros(len(rows))
    consensus_square = 0.0
    for start in range(0, flat[0].size, CHUNK):
        part = slice(start, start + CHUNK)
        block = np.array([row[part] for row in flat], dtype=np.float64)
        centre = block.mean(axis=0) if middle is None else middle[part].astype(np.float64)
        gram += block @ block.T
        consensus_square += float(centre @ centre)
        block -= centre
        distances += np.square(block).sum(axis=1)
    absolute = float(np.sqrt(distances).mean())
    norms, size = np.sqrt(np.diag(gram)), float(np.sqrt(consensus_square))
    vanished = size <= VANISHED * float(norms.max())
    return Divergence(absolute, None if vanished else absolute / size, _mean_cosine(gram, norms))


def _mean_cosine(gram: Vector, norms: Vector) -> float | None:
    j, k = np.triu_indices(len(gram), 1)
    both = (norms[j] > 0) & (norms[k] > 0)
    if not both.any():
        return None
    j, k = j[both], k[both]
    return float(np.clip(gram[j, k] / norms[j] / norms[k], -1.0, 1.0).mean())
