"""Scorers: a round's signals -> one score a client. State in, state out, by client name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from strategies.kalman import KalmanState, RankAdaptiveKalman
from strategies.round import Round, Vector


@dataclass(frozen=True)
class Scores:
    """What a scorer says of the clients that replied."""

    values: Vector  # (m,), not negative
    std: Vector | None = None  # (m,), if the scorer knows how sure it is
    noise: Mapping[str, float] = field(default_factory=dict)  # variance it gave each signal
    size: float = 1.0  # factor on the next model, if the scorer learns one: FedLAW's gamma


@dataclass(frozen=True)
class ScorerState:
    """All that a scorer remembers; a checkpoint holds it whole."""

    means: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # signal -> client -> EMA
    kalman: KalmanState = KalmanState()
    reputation: Mapping[str, float] = field(default_factory=dict)  # CGSV's r
    logits: Mapping[str, float] = field(default_factory=dict)  # FedAWA's T


Signals = Mapping[str, Vector]  # (m,) each, by the signal's name
Scored = tuple[ScorerState, Scores]


class Scorer(Protocol):
    """How signals become scores."""

    def score(self, state: ScorerState, signals: Signals, round_: Round, known: Sequence[str]) -> Scored:
        """Score the round's clients (m,) from signals, each (m,); ``known`` are all of the federation."""


@dataclass(frozen=True)
class Ema:
    """An exponential mean of the one signal there is: SpectralFed's score.

    A client's first value counts whole, ``s <- memory s + (1 - memory) z`` afterwards. While a client has
    no value (NaN) its mean stays; without any it scores 0.
    """

    memory: float = 0.9

    def score(self, state: ScorerState, signals: Signals, round_: Round, known: Sequence[str]) -> Scored:
        """The smoothed signal."""
        ((name, _),) = signals.items()
        means, smooth = smoothed(self.memory, state.means, signals, round_.clients)
        return replace(state, means=means), Scores(np.nan_to_num(smooth[name]))


@dataclass(frozen=True)
class RankFused:
    """Exponential means of the signals, fused by the rank-adaptive Kalman filter: SpectralFuse's score.

    A lone reply is not filtered: there is nothing to rank it against.
    """

    memory: float = 0.9
    kalman: RankAdaptiveKalman = RankAdaptiveKalman()

    def score(self, state: ScorerState, signals: Signals, round_: Round, known: Sequence[str]) -> Scored:
        """The filter's means, with their standard deviations."""
        clients = round_.clients
        means, smooth = smoothed(self.memory, state.means, signals, clients)
        filter_state = self.kalman.predict(state.kalman, known)
        noise: dict[str, float] = {}
        if len(clients) > 1:
            filter_state, noise = self.kalman.update(filter_state, clients, smooth)
        scores = Scores(
            np.array([filter_state.mean[c] for c in clients]),
            np.sqrt([filter_state.variance[c] for c in clients]),
            noise,
        )
        return replace(state, means=means, kalman=filter_state), scores


@dataclass(frozen=True)
class Reputation:
    """A floored running mean of the one signal there is: CGSV's reputation.

        r <- max(memory r + (1 - memory) phi, floor / (1 - memory))      a client's first phi counts whole

    The paper's code starts every r at 0 and has the floor itself in the formula, which gives a first round
    the same shares as this. It then divides r by its sum after each round, with all clients in all rounds.
    Here r is kept as it is, those of absent clients too, so that a client that comes late or seldom is not
    held back; weights are shares of the cohort.
    """

    memory: float = 0.95
    floor: float = 1e-3

    def score(self, state: ScorerState, signals: Signals, round_: Round, known: Sequence[str]) -> Scored:
        """The reputations after this round."""
        ((_, values),) = signals.items()
        smallest = self.floor / (1 - self.memory)
        now = {}
        for client, value in zip(round_.clients, values.tolist(), strict=True):
            mean = self.memory * state.reputation.get(client, value) + (1 - self.memory) * value
            now[client] = max(mean, smallest)
        scores = Scores(np.array([now[client] for client in round_.clients]))
        return replace(state, reputation={**state.reputation, **now}), scores


@dataclass(frozen=True)
class Discounted:
    """FedDisco's rule on the one signal there is: ``max(n_k - a d_k + b, 0)``, n_k a share of examples."""

    a: float = 0.5
    b: float = 0.1

    def score(self, state: ScorerState, signals: Signals, round_: Round, known: Sequence[str]) -> Scored:
        """The claimed shares of examples, less for a discrepant client. Nothing is remembered."""
        ((_, values),) = signals.items()
        sizes = round_.examples / round_.examples.sum()
        return state, Scores((sizes - self.a * values + self.b).clip(min=0.0))


def smoothed(
    memory: float,
    means: Mapping[str, Mapping[str, float]],
    signals: Signals,
    clients: Sequence[str],
) -> tuple[dict[str, dict[str, float]], dict[str, Vector]]:
    """Exponential means a signal and client: the new table, and its values for ``clients``.

    A signal that says nothing of anybody this round (all NaN) gives NaN for all: an old mean must not
    pass for a measurement.
    """
    table = {name: dict(old) for name, old in means.items()}
    now: dict[str, Vector] = {}
    for name, values in signals.items():
        column = table.setdefault(name, {})
        for client, value in zip(clients, values.tolist(), strict=True):
            if np.isfinite(value):
                column[client] = memory * column[client] + (1 - memory) * value if client in column else value
        silent = not np.isfinite(values).any()
        now[name] = np.array([np.nan if silent else column.get(c, np.nan) for c in clients])
    return table, now
