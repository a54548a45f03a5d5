"""The rank-adaptive Kalman filter of SpectralFuse.

Each client has a score ``x`` with variance ``P``. Signals are noisy measurements of the scores, and a
signal's noise falls as its ranking of the clients agrees with the filter's own::

    predict   P- = P + Q                                  for every client, absent ones too
    trust     r <- (1 - beta) r + beta Spearman(x-, z)    one r a signal
              R  = clip(1 - r + eps, eps, R_max)
    update    1/P = 1/P- + sum 1/R      x = P (x-/P- + sum z/R)      for those who replied

This is the information form of the paper's Eq. 5 to 8: precisions add and the mean is their weighted
average, for any number of signals, without inverting a matrix. ``beta = 1`` is the paper's Eq. 17 as it
stands. Under partial participation, which the paper does not treat, measurements are scaled to the mass
of the scores of those who replied, so that equal clients get equal scores whatever their history.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from strategies.round import Vector

MIN_VARIANCE = 1e-8
MAX_NOISE = 100.0


@dataclass(frozen=True)
class KalmanState:
    """The filter's memory; by client name and by signal name."""

    mean: Mapping[str, float] = field(default_factory=dict)
    variance: Mapping[str, float] = field(default_factory=dict)
    trust: Mapping[str, float] = field(default_factory=dict)  # r of each signal, -1 to 1


@dataclass(frozen=True)
class RankAdaptiveKalman:
    """The filter's parameters. Q and eps are the paper's; beta and P0 come from its published code."""

    q: float = 1e-4  # variance that a score gains in a round
    eps: float = 1e-3  # noise of a signal that agrees perfectly
    p0: float = 1.0  # variance of a client's first score
    beta: float = 0.1  # how fast trust follows; 1: only the last ranking counts

    def predict(self, state: KalmanState, clients: Sequence[str]) -> KalmanState:
        """Make ``clients`` known and widen everybody's variance by Q.

        The first clients start at 1/n; one that comes later starts at the mean of those already known.
        """
        # fsum: the order of names, which a checkpoint sorts, must not change the last bits.
        known = len(state.mean)
        start = math.fsum(state.mean.values()) / known if known else 1.0 / max(len(clients), 1)
        new = [client for client in clients if client not in state.mean]
        mean = {**state.mean, **dict.fromkeys(new, start)}
        variance = {**state.variance, **dict.fromkeys(new, self.p0)}
        return KalmanState(mean, {c: p + self.q for c, p in variance.items()}, state.trust)

    def update(
        self, state: KalmanState, clients: Sequence[str], signals: Mapping[str, Vector]
    ) -> tuple[KalmanState, dict[str, float]]:
        """Fuse the signals, each (m,), of the clients that replied into a predicted state.

        A client's NaN leaves that signal out for that client; a signal without a positive sum is left
        out for all. The new score is a convex combination of the old one and the scaled measurements:
        non-negative signals give non-negative scores, and variances never grow. Returns the state and
        the noise variance ``R`` of each signal that was used.
        """
        prior = np.array([state.mean[c] for c in clients])  # (m,)
        precision = 1.0 / np.array([state.variance[c] for c in clients])
        information = prior * precision
        trust, noise = dict(state.trust), {}
        for name, values in signals.items():
            z = _to_mass(values, prior)
            if z is None:
                continue
            there = np.isfinite(z)
            trust[name] = (1 - self.beta) * trust.get(name, 0.0) + self.beta * rank_correlation(
                prior[there], z[there]
            )
            noise[name] = float(np.clip(1.0 - trust[name] + self.eps, self.eps, MAX_NOISE))
            precision = precision + there / noise[name]
            information = information + np.where(there, z, 0.0) / noise[name]
        mean = dict(zip(clients, (information / precision).tolist(), strict=True))
        variance = dict(zip(clients, np.maximum(1.0 / precision, MIN_VARIANCE).tolist(), strict=True))
        return KalmanState({**state.mean, **mean}, {**state.variance, **variance}, trust), noise


def rank_correlation(a: Vector, b: Vector) -> float:
    """Spearman's rho with average ranks for ties; 0 for fewer than three clients or if all are tied."""
    a, b = _without_rounding(a), _without_rounding(b)
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    from scipy import stats  # half a second of CPU time, which only this filter's runs need

    return float(stats.spearmanr(a, b).statistic)


def _without_rounding(values: Vector) -> Vector:
    """Values of which those that differ by rounding alone are equal: ranks would make much of it."""
    peak = np.abs(values).max(initial=0.0)
    return np.round(values / peak, 12) if peak > 0 else values


def _to_mass(values: Vector, prior: Vector) -> Vector | None:
    """``values`` scaled so that they sum to the prior scores of the same clients; None if they cannot."""
    there = np.isfinite(values)
    total = values[there].sum()
    if not there.any() or total <= 0:
        return None
    scaled: Vector = np.where(there, values, np.nan) / total * prior[there].sum()
    return scaled
