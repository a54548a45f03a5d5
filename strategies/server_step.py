"""Server steps: the aggregated update -> the next model."""

from collections.abc import Callable, Mapping

import numpy as np

from common.params import Arrays
from strategies.round import Vector

ServerStep = Callable[[Arrays, Mapping[str, Vector]], Arrays]


def average(learning_rate: float = 1.0) -> ServerStep:
    """``w <- w + eta_g D``, rounded once to the model's own type. Rate 1 is FedAvg."""

    def step(model: Arrays, update: Mapping[str, Vector]) -> Arrays:
        return {
            name: (np.asarray(w, dtype=np.float64) + learning_rate * update[name]).astype(w.dtype)
            for name, w in model.items()
        }

    return step
