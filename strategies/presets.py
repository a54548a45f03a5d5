"""The weightings by name, each one expression over the pieces.

==============  =====================================================================================
uniform         the plain average over participants
examples        FedAvg's weights: the example counts that nodes report
spectralfed     von Neumann entropy of the head's update, smoothed
spectralfuse    entropy and class-wise alignment, fused by the rank-adaptive Kalman filter
==============  =====================================================================================
"""

from collections.abc import Callable
from dataclasses import replace

from common.config import RunConfig
from strategies.kalman import RankAdaptiveKalman
from strategies.recipe import Recipe
from strategies.scorers import Ema, RankFused
from strategies.server_step import average
from strategies.signals.alignment import alignment
from strategies.signals.entropy import entropy
from strategies.weighting import BASE, by_examples, proportional, uniform


def _kalman(config: RunConfig) -> RankAdaptiveKalman:
    return RankAdaptiveKalman(config.kalman_q, config.kalman_eps, config.kalman_p0, config.kalman_beta)


PRESETS: dict[str, Callable[[RunConfig], Recipe]] = {
    "uniform": lambda config: Recipe(uniform),
    "examples": lambda config: Recipe(by_examples),
    "spectralfed": lambda config: Recipe(proportional, {"entropy": entropy}, Ema(config.score_ema)),
    "spectralfuse": lambda config: Recipe(
        proportional,
        {"entropy": entropy, "alignment": alignment},
        RankFused(config.score_ema, _kalman(config)),
    ),
}


def build(config: RunConfig) -> Recipe:
    """The recipe of a run: its weighting, in its contribution mode, with its server learning rate."""
    full = replace(PRESETS[config.weighting](config), step=average(config.server_learning_rate))
    base = BASE[config.base_weighting]
    modes: dict[str, Callable[[], Recipe]] = {
        "weight": lambda: full,
        "observe": lambda: full if full.scorer is None else replace(full, weigh=base),
        "off": lambda: full if full.scorer is None else replace(full, signals={}, scorer=None, weigh=base),
    }
    return modes[config.contribution]()
