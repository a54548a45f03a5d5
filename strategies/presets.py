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
fedlaw          weights and the next model's size, learnt on labelled data of the server's own
==============  =====================================================================================

Around any of them: a limit on norms, a robust aggregate, FedLWS's shrinkage and a server optimiser.
ShapFed and CGSV can also send each node a model of its own.
"""

from collections.abc import Callable
from dataclasses import replace

from common.config import RunConfig
from common.errors import ConfigError
from common.traits import guards_at_work
from strategies.aggregate import Aggregate, median_buffers, merged_buffers
from strategies.fedawa import FedAwa
from strategies.fedlaw import FedLaw, Proxy
from strategies.guards import Guards
from strategies.kalman import RankAdaptiveKalman
from strategies.recipe import Recipe
from strategies.rescale import Rescale, as_sent, clipped, equal_norms, in_turn
from strategies.reward import Broadcast, Personalised, Sparsified, same_model
from strategies.robust import AGGREGATES
from strategies.scorers import Discounted, Ema, RankFused, Reputation
from strategies.server_rule import (
    AgreedPerturbation,
    Control,
    MeanDirection,
    MeanDrift,
    MeanDual,
    ParticipantsShift,
    ReportedControl,
    ServerRule,
    Together,
)
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


def _fedlaw(config: RunConfig, proxy: Proxy | None) -> Recipe:
    if proxy is None:
        raise ConfigError("weighting=fedlaw takes what models lose on the server's proxy data; got nothing")
    return Recipe(proportional, {}, FedLaw(proxy), sized=True)


PRESETS: dict[str, Callable[[RunConfig, Proxy | None], Recipe]] = {
    "uniform": lambda config, _: Recipe(uniform),
    "examples": lambda config, _: Recipe(by_examples),
    "spectralfed": lambda config, _: Recipe(
        proportional, {"entropy": _entropy(config)}, Ema(config.score_ema)
    ),
    "spectralfuse": lambda config, _: Recipe(
        proportional,
        {"entropy": _entropy(config), "alignment": VARIANTS[config.alignment]},
        RankFused(config.score_ema, _kalman(config)),
    ),
    "shapfed": lambda config, _: Recipe(
        proportional, {"alignment": VARIANTS[config.alignment]}, Ema(config.score_ema)
    ),
    "cgsv": lambda config, _: Recipe(proportional, {"cosine": cosine}, Reputation(), rescale=equal_norms),
    "feddisco": lambda config, _: Recipe(
        proportional_or_examples, {"discrepancy": discrepancy("kl")}, Discounted()
    ),
    "fedawa": lambda config, _: Recipe(proportional, {}, FedAwa()),
    "fedlaw": _fedlaw,
}


def _duals(config: RunConfig, of_all: ServerRule) -> ServerRule:
    return of_all if config.duals == "all" else ParticipantsShift()


SERVER_RULES: dict[str, Callable[[RunConfig], ServerRule]] = {
    "fedavg": lambda c: ServerRule(),
    "fedprox": lambda c: ServerRule(),
    "feddyn": lambda c: MeanDual(c.dyn_alpha),
    "scaffold": lambda c: Control() if c.scaffold_option == "II" else ReportedControl(),
    "fedcm": lambda c: MeanDirection(),
    "fedsam": lambda c: ServerRule(),
    "fedfft": lambda c: ServerRule(),
    "fedvssam": lambda c: MeanDirection() if c.vssam_direction == "global" else Control(),
    "ssf": lambda c: Control(),
    "mofedsam": lambda c: MeanDirection(),
    "fedgamma": lambda c: Control(),
    "fedspeed": lambda c: _duals(c, MeanDual(c.speed_mu)),
    "fedsmoo": lambda c: Together((MeanDual(c.dyn_alpha), AgreedPerturbation(c.sam_rho))),
    "fedlesam": lambda c: SERVER_RULES[c.lesam_rule](c),
    "feddc": lambda c: Together((Control(), _duals(c, MeanDrift()))),
    "fedlc": lambda c: ServerRule(),
}

OPTIMIZERS: dict[str, Callable[[RunConfig], ServerStep]] = {
    "sgd": lambda c: average(c.server_learning_rate),
    "momentum": lambda c: momentum(c.server_learning_rate, c.server_momentum),
    "adam": lambda c: adam(c.server_learning_rate, c.server_momentum, c.server_beta2, c.server_tau),
    "yogi": lambda c: yogi(c.server_learning_rate, c.server_momentum, c.server_beta2, c.server_tau),
    "adagrad": lambda c: adagrad(c.server_learning_rate, c.server_tau),
}


def build(config: RunConfig, proxy: Proxy | None = None) -> Recipe:
    """The recipe of a run: its weighting, in its contribution mode, with all that the run puts around it.

    ``proxy`` is for FedLAW: what models lose on the server's own data. Raises ConfigError without, if it is
    needed.
    """
    weighting = PRESETS[config.weighting](config, proxy)
    clip = _clip(config)
    full = replace(
        weighting,
        guards=_guards(config),
        rescale=in_turn(weighting.rescale, clip),
        aggregate=_aggregate(config),
        merge_buffers=merged_buffers if config.aggregation == "mean" else median_buffers,
        rule=SERVER_RULES[config.algorithm](config),
        step=OPTIMIZERS[config.server_optimizer](config),
        send=_broadcast(config),
        needs_labels=config.wants_labels,
    )
    observed = replace(full, weigh=BASE[config.base_weighting], rescale=clip, sized=False)
    modes: dict[str, Callable[[], Recipe]] = {
        "weight": lambda: full,
        "observe": lambda: full if full.scorer is None else observed,
        "off": lambda: full if full.scorer is None else replace(observed, signals={}, scorer=None),
    }
    return modes[config.contribution]()


def _guards(config: RunConfig) -> Guards | None:
    if guards_at_work(config.guards, config.contribution, config.weighting) == "off":
        return None
    freedom = config.ssf_rank if config.traits.subspace else 1.0
    return Guards(weigh=config.guards == "weight", noise=config.guard_z, freedom=freedom)


def _clip(config: RunConfig) -> Rescale:
    return clipped(config.update_clip) if config.update_clip else as_sent


def _broadcast(config: RunConfig) -> Broadcast:
    if config.reward_beta:
        return Sparsified(config.reward_beta)
    return same_model if config.personalise == "off" else Personalised(config.personalise)


def _aggregate(config: RunConfig) -> Aggregate:
    aggregate = AGGREGATES[config.aggregation]
    return shrunk(aggregate, config.layer_shrinkage) if config.layer_shrinkage else aggregate
