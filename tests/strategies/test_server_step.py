"""Server optimisers: three steps of each are those of Flower's own strategy."""

import math
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


# Each optimiser in one line a quantity, for one number.
FORMULAS: dict[str, Callable[[float, float, float, int], tuple[float, float, float]]] = {
    "momentum": lambda m, v, d, n: (u := 0.9 * m + d, v, 0.5 * u),
    "adam": lambda m, v, d, n: (
        m := 0.9 * m + (1 - 0.9) * d,
        v := 0.99 * v + (1 - 0.99) * d**2,
        0.1 * float(np.sqrt(1 - 0.99 ** (n + 1)) / (1 - 0.9 ** (n + 1))) * (m / (math.sqrt(v) + 1e-3)),
    ),
    "yogi": lambda m, v, d, n: (
        m := 0.9 * m + (1 - 0.9) * d,
        v := v - (1 - 0.99) * d**2 * float(np.sign(v - d**2)),
        0.01 * (m / (math.sqrt(v) + 1e-3)),
    ),
    "adagrad": lambda m, v, d, n: (m := 0.0 * m + 1.0 * d, v := v + d**2, 0.1 * (m / (math.sqrt(v) + 1e-3))),
}


@pytest.mark.parametrize("name", STEPS)
def test_every_number_is_its_formula_to_the_last_bit(name: str) -> None:
    rng = np.random.default_rng(0)
    sizes = {"a": (3, 5), "b": (7,), "c": ()}
    model = {key: np.asarray(rng.normal(size=n), dtype=np.float32) for key, n in sizes.items()}
    expected = {key: x.ravel().tolist() for key, x in model.items()}
    kept = {key: [(0.0, 0.0)] * x.size for key, x in model.items()}
    state: StepState = {}
    for number in (1, 2, 3):
        update = {key: np.asarray(rng.normal(size=n)) for key, n in sizes.items()}
        state, model = STEPS[name][0](state, model, update)
        for key, d in update.items():
            after = [
                FORMULAS[name](m, v, x, number)
                for (m, v), x in zip(kept[key], d.ravel().tolist(), strict=True)
            ]
            kept[key] = [(m, v) for m, v, _ in after]
            expected[key] = [
                float(np.float32(w + move)) for w, (_, _, move) in zip(expected[key], after, strict=True)
            ]
            assert np.ravel(model[key]).tolist() == expected[key]
            assert np.ravel(state[f"momentum/{key}"]).tolist() == [m for m, _ in kept[key]]
            if name != "momentum":
                assert np.ravel(state[f"variance/{key}"]).tolist() == [v for _, v in kept[key]]
