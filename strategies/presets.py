"""The weightings by name, each one expression over the pieces.

==============  =====================================================================================
uniform         the plain average over participants
examples        FedAvg's weights: the example counts that nodes report
spectralfed     von Neumann entropy of the head's update, smoothed
spectralfuse    entropy and class-wise alignment, fused by the rank-adaptive Kalman filter
shapfed         class-wise alignment of the head's update, smoothed
cgsv            cosine of the whole update with the cohort's, as a reputation; updates of equal norm
feddisco        the example counts, less for label histograms far from uniform, which nodes report
fedawa          weights learnt from the distances between whole updates
==============  =====================================================================================

Around any of them: a limit on norms, a robust aggregate, FedLWS's shrinkage and a server optimiser.
"""

from collections.abc import Callable
from dataclasses import replace

from common.config import RunConfig
from strategies.aggregate import Aggregate
from strategies.fedawa import FedAwa
from strategies.kalman import RankAdaptiveKalman
from strategies.recipe import Recipe
from strategies.rescale import Rescale, as_sent, clipped, equal_norms, in_turn
from strategies.robust import AGGREGATES
from strategies.scorers import Discounted, Ema, RankFused, Reputation
from strategies.server_step import ServerStep, adagrad, adam, average, momentum, yogi
from strategies.shrinkage import shrunk
from strategies.signals import Signal
from strategies.signals.alignment import VARIANTS
from strategies.signals.cgsv import cosine
from strategies.signals.discrepancy import discrepancy
from strategies.signals.entropy import MEASURES, entropy_of, head_entropy
from strategies.weighting import BASE, by_examples, proportional, proportional_or_examples, uniform


def _kalman(config: RunConfig) -> RankAdaptiveKalman:
    return RankAdaptiveKalman(config.kalman_q, config.kalman_eps, config.kalman_p0, config.kalman_beta)


def _entropy(config: RunConfig) -> Signal:
    measure = MEASURES[config.entropy_norm]
    return entropy_of(config.entropy_layer, measure) if config.entropy_layer else head_entropy(measure)


PRESETS: dict[str, Callable[[RunConfig], Recipe]] = {
    "uniform": lambda config: Recipe(uniform),
    "examples": lambda config: Recipe(by_examples),
    "spectralfed": lambda config: Recipe(proportional, {"entropy": _entropy(config)}, Ema(config.score_ema)),
    "spectralfuse": lambda config: Recipe(
        proportional,
        {"entropy": _entropy(config), "alignment": VARIANTS[config.alignment]},
        RankFused(config.score_ema, _kalman(config)),
    ),
    "shapfed": lambda config: Recipe(
        proportional, {"alignment": VARIANTS[config.alignment]}, Ema(config.score_ema)
    ),
    "cgsv": lambda config: Recipe(proportional, {"cosine": cosine}, Reputation(), rescale=equal_norms),
    "feddisco": lambda config: Recipe(
        proportional_or_examples, {"discrepancy": discrepancy("kl")}, Discounted(), needs_labels=True
    ),
    "fedawa": lambda config: Recipe(proportional, {}, FedAwa()),
}

OPTIMIZERS: dict[str, Callable[[RunConfig], ServerStep]] = {
    "sgd": lambda c: average(c.server_learning_rate),
    "momentum": lambda c: momentum(c.server_learning_rate, c.server_momentum),
    "adam": lambda c: adam(c.server_learning_rate, c.server_momentum, c.server_beta2, c.server_tau),
    "yogi": lambda c: yogi(c.server_learning_rate, c.server_momentum, c.server_beta2, c.server_tau),
    "adagrad": lambda c: adagrad(c.server_learning_rate, c.server_tau),
}


def build(config: RunConfig) -> Recipe:
    """The recipe of a run: its weighting, in its contribution mode, with all that the run puts around it."""
    weighting = PRESETS[config.weighting](config)
    clip = _clip(config)
    full = replace(
        weighting,
        rescale=in_turn(weighting.rescale, clip),
        aggregate=_aggregate(config),
        step=OPTIMIZERS[config.server_optimizer](config),
    )
    observed = replace(full, weigh=BASE[config.base_weighting], rescale=clip)
    modes: dict[str, Callable[[], Recipe]] = {
        "weight": lambda: full,
        "observe": lambda: full if full.scorer is None else observed,
        "off": lambda: (
            full if full.scorer is None else replace(observed, signals={}, scorer=None, needs_labels=False)
        ),
    }
    return modes[config.contribution]()


def _clip(config: RunConfig) -> Rescale:
    return clipped(config.update_clip) if config.update_clip else as_sent


def _aggregate(config: RunConfig) -> Aggregate:
    aggregate = AGGREGATES[config.aggregation]
    return shrunk(aggregate, config.layer_shrinkage) if config.layer_shrinkage else aggregate
