"""Small cohorts for the tests of the guards: four honest clients, and whoever else."""

import numpy as np

from common.models import Head
from strategies.guards import NO_TRAIL, Guards
from strategies.round import Reply, Round

SHAPE = (120, 100)  # 12,000 elements: enough for the noise test
EQUAL = np.full(5, 0.2)


def draw(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def honest(seed: int) -> np.ndarray:
    """An update that has a tenth of its direction in common with other honest ones."""
    return 0.3 * draw(999) + draw(seed)


def round_of(updates: dict[str, np.ndarray], dtype: str = "float64") -> Round:
    model = {"w": np.zeros(next(iter(updates.values())).shape, dtype), "head": np.zeros((3, 4), dtype)}
    replies = tuple(
        Reply(name, {"w": updates[name].astype(dtype), "head": np.zeros((3, 4), dtype)}, {}, 10)
        for name in sorted(updates)
    )
    return Round(1, model, Head("head", None, (3, 4)), replies)


def cohort(**others: np.ndarray) -> Round:
    """Four honest clients, ``a`` to ``d``, and these."""
    return round_of({name: honest(i) for i, name in enumerate("abcd")} | others)


def found_by(guards: Guards, round_: Round, trail: np.ndarray = NO_TRAIL) -> dict[str, list[str]]:
    weights = np.full(len(round_.replies), 1 / len(round_.replies))
    seen = guards.look(weights, round_, trail)
    return {name: [flag.test for flag in flags] for name, flags in seen.flags.items()}


def moves_of(*moves: np.ndarray) -> np.ndarray:
    """What the guards keep of earlier models that made these moves to the present one, which is zero."""
    models = -np.cumsum(moves[::-1], axis=0)[::-1]
    return np.stack([np.concatenate([model.ravel(), np.zeros(12)]) for model in models])
