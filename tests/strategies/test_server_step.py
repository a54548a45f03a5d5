"""Server optimisers: three steps of each are those of Flower's own strategy."""

from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvgM, FedYogi

from specfed.local_grid import own_identity
from strategies.server_step import ServerStep, StepState, adagrad, adam, average, momentum, yogi

START = {"w": np.array([1.0, -2, 3]), "b": np.array(0.5)}
UPDATES = [{"w": np.array([0.1, 0.2, -0.3]) * k, "b": np.array(0.4) / k} for k in (1.0, -2, 0.5)]

STEPS: dict[str, tuple[ServerStep, Callable[[], FedAvgM]]] = {
    "momentum": (
        momentum(0.5, 0.9),
        lambda: FedAvgM(server_learning_rate=0.5, server_momentum=0.9),
    ),
    "adam": (adam(0.1, 0.9, 0.99, 1e-3), lambda: FedAdam(eta=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3)),
    "yogi": (yogi(0.01, 0.9, 0.99, 1e-3), lambda: FedYogi(eta=0.01, beta_1=0.9, beta_2=0.99, tau=1e-3)),
    "adagrad": (adagrad(0.1, 1e-3), lambda: FedAdagrad(eta=0.1, tau=1e-3)),
}


def record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(x)) for name, x in arrays.items()})


@pytest.mark.parametrize("name", STEPS)
def test_three_steps_are_flowers(name: str) -> None:
    step, build = STEPS[name]
    strategy = build()
    state: StepState = {}
    model, theirs = START, START
    for number, update in enumerate(UPDATES, 1):
        state, model = step(state, model, update)
        strategy.current_arrays = {k: v.copy() for k, v in theirs.items()}
        if name == "momentum":
            strategy.current_arrays = record(theirs)  # type: ignore[assignment]
        sent = RecordDict(
            {
                "arrays": record({k: theirs[k] + update[k] for k in theirs}),
                "metrics": MetricRecord({"num-examples": 1}),
            }
        )
        with own_identity():
            got, _ = strategy.aggregate_train(number, [Message(sent, 1, "train")])
        assert got is not None
        theirs = {k: a.numpy() for k, a in got.items()}
        for k in START:
            assert model[k] == pytest.approx(theirs[k], rel=1e-12), (number, k)


def test_the_plain_step_is_the_update_times_the_rate_and_remembers_nothing() -> None:
    state, model = average(0.5)({}, START, UPDATES[0])
    assert state == {} and model["w"] == pytest.approx([1.05, -1.9, 2.85])


def test_momentum_by_hand() -> None:
    step = momentum(1.0, 0.5)
    state, model = step({}, START, UPDATES[0])
    state, model = step(state, model, UPDATES[1])
    # u = 0.1, then 0.5 * 0.1 - 0.2 = -0.15.
    assert model["w"][0] == pytest.approx(1.0 + 0.1 - 0.15)
    assert state["momentum/w"][0] == pytest.approx(-0.15)


@pytest.mark.parametrize("name", STEPS)
def test_states_are_float64_and_models_keep_their_type(name: str) -> None:
    step, _ = STEPS[name]
    half = {k: np.asarray(x, dtype=np.float32) for k, x in START.items()}
    state, model = step({}, half, {k: np.zeros(x.shape) for k, x in half.items()})
    assert {x.dtype for x in state.values()} == {np.dtype(np.float64)}
    for k, x in half.items():
        assert model[k].dtype == np.float32 and model[k].shape == x.shape and (model[k] == x).all()
