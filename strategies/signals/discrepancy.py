"""Discrepancy of a client's label histogram from a target: the signal of FedDisco (Ye et al., 2023).

The histograms are what the nodes say of themselves. A node that claims a uniform one has discrepancy 0.
"""

from collections.abc import Callable

import numpy as np

from strategies.round import Round, Vector
from strategies.signals import Reading, Signal

SMALLEST_TARGET = 1e-12

Metric = Callable[[Vector, Vector], Vector]  # shares (m, classes), target (classes,) -> (m,)


def l1(shares: Vector, target: Vector) -> Vector:
    """Sum of absolute differences."""
    distances: Vector = np.abs(shares - target).sum(axis=1)
    return distances


def l2(shares: Vector, target: Vector) -> Vector:
    """Euclidean distance."""
    distances: Vector = np.linalg.norm(shares - target, axis=1)
    return distances


def cosine(shares: Vector, target: Vector) -> Vector:
    """One less the cosine."""
    lengths = np.linalg.norm(shares, axis=1) * np.linalg.norm(target)
    distances: Vector = 1.0 - (shares @ target) / lengths
    return distances.clip(min=0.0)


def divergence(shares: Vector, target: Vector) -> Vector:
    """Kullback-Leibler divergence in nats; a class that the target lacks has a share of 1e-12 in it."""
    ratio = np.where(shares > 0, shares, 1.0) / np.maximum(target, SMALLEST_TARGET)
    nats: Vector = np.where(shares > 0, shares * np.log(ratio), 0.0).sum(axis=1)
    return nats.clip(min=0.0)


def normalised_divergence(shares: Vector, target: Vector) -> Vector:
    """The divergence over its sum in the cohort, as in FedDisco's code; all 0 if the sum is."""
    nats = divergence(shares, target)
    total = nats.sum()
    return nats / total if total > 0 else nats


METRICS: dict[str, Metric] = {"l1": l1, "l2": l2, "cosine": cosine, "kl": normalised_divergence}


def discrepancy(metric: str = "kl", target: Vector | None = None) -> Signal:
    """The signal with one of METRICS, against ``target`` (classes,) on the simplex; None is uniform.

    Not negative. Every reply must hold label counts: reading one without raises ValueError.
    """
    measure = METRICS[metric]

    def signal(round_: Round, weights: Vector) -> Reading:
        shares = _label_shares(round_)
        uniform = np.full(shares.shape[1], 1.0 / shares.shape[1])
        return Reading(measure(shares, uniform if target is None else target))

    return signal


def _label_shares(round_: Round) -> Vector:
    silent = [reply.client for reply in round_.replies if not reply.label_counts]
    if silent:
        raise ValueError(f'client "{silent[0]}" gave no label counts; discrepancy needs them of every client')
    counts = np.array([reply.label_counts for reply in round_.replies], dtype=np.float64)
    shares: Vector = counts / counts.sum(axis=1, keepdims=True)
    return shares
