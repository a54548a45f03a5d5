"""Server steps: the aggregated update -> the next model. State in, state out.

The update takes the place of a negative gradient. Each formula, its start at zero included, is that of
Flower's strategy of the same name; what is kept in float32 there is kept in float64 here.

Tensor by tensor: beside the new state and the new model only one tensor's intermediate results exist.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from common.params import Arrays
from strategies.round import Vector

Update = Mapping[str, Vector]
StepState = Mapping[str, Vector]  # float64, "<kind>/<parameter>"; empty before the first step
ServerStep = Callable[[StepState, Arrays, Update], tuple[StepState, Arrays]]

FIRST, SECOND, COUNT = "momentum", "variance", "steps"


def average(learning_rate: float = 1.0) -> ServerStep:
    """``w <- w + eta D``, rounded once to the model's own type. Rate 1 is FedAvg."""
    return lambda state, model, update: (
        state,
        {name: moved(w, update[name], learning_rate) for name, w in model.items()},
    )


def momentum(learning_rate: float = 1.0, beta: float = 0.9) -> ServerStep:
    """FedAvgM: ``u <- beta u + D``, ``w <- w + eta u``. The update is not damped by 1 - beta."""

    def step(state: StepState, model: Arrays, update: Update) -> tuple[StepState, Arrays]:
        speed: dict[str, Vector] = {}
        after: Arrays = {}
        for name, w in model.items():
            d = update[name]
            u = beta * _kept(state, FIRST, name, d) + d
            speed[name], after[name] = np.asarray(u), moved(w, u, learning_rate)
        return _named(FIRST, speed), after

    return step


def adam(learning_rate: float, beta1: float, beta2: float, tau: float) -> ServerStep:
    """FedAdam: ``v <- b2 v + (1 - b2) D^2``. The rate is corrected as in Flower, whose first step already
    counts as the second."""

    def variance(v: Vector, d: Vector) -> Vector:
        return beta2 * v + (1 - beta2) * d**2

    def correction(count: int) -> float:
        return float(np.sqrt(1 - beta2 ** (count + 1)) / (1 - beta1 ** (count + 1)))

    return _adaptive(learning_rate, beta1, tau, variance, correction)


def yogi(learning_rate: float, beta1: float, beta2: float, tau: float) -> ServerStep:
    """FedYogi: ``v <- v - (1 - b2) D^2 sign(v - D^2)``."""
    return _adaptive(learning_rate, beta1, tau, lambda v, d: v - (1 - beta2) * d**2 * np.sign(v - d**2))


def adagrad(learning_rate: float, tau: float) -> ServerStep:
    """FedAdagrad: ``v <- v + D^2``, without momentum."""
    return _adaptive(learning_rate, 0.0, tau, lambda v, d: v + d**2)


def _adaptive(
    learning_rate: float,
    beta1: float,
    tau: float,
    next_variance: Callable[[Vector, Vector], Vector],
    correction: Callable[[int], float] = lambda n: 1.0,
) -> ServerStep:
    """``m <- b1 m + (1 - b1) D``, ``w <- w + eta m / (sqrt v + tau)``."""

    def step(state: StepState, model: Arrays, update: Update) -> tuple[StepState, Arrays]:
        count = int(state.get(COUNT, np.zeros(()))) + 1
        rate = learning_rate * correction(count)
        means: dict[str, Vector] = {}
        variances: dict[str, Vector] = {}
        after: Arrays = {}
        for name, w in model.items():
            d = update[name]
            m = beta1 * _kept(state, FIRST, name, d) + (1 - beta1) * d
            v = next_variance(_kept(state, SECOND, name, d), d)
            means[name], variances[name] = np.asarray(m), np.asarray(v)
            after[name] = moved(w, m / (np.sqrt(v) + tau), rate)
        steps = np.array(count, dtype=np.float64)
        return {**_named(FIRST, means), **_named(SECOND, variances), COUNT: steps}, after

    return step


def _kept(state: StepState, kind: str, name: str, update: Vector) -> Vector:
    return state.get(f"{kind}/{name}", np.zeros(update.shape))


def _named(kind: str, values: Mapping[str, Vector]) -> dict[str, Vector]:
    return {f"{kind}/{name}": x for name, x in values.items()}


def moved(w: NDArray[np.generic], direction: NDArray[np.generic], rate: float = 1.0) -> NDArray[np.generic]:
    """``w + rate direction``, summed in float64 and rounded once to the type of ``w``."""
    step = rate * np.asarray(direction, dtype=np.float64)
    return (np.asarray(w, dtype=np.float64) + step).astype(w.dtype)
