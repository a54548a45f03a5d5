"""Finite numbers that are too large to reckon with: never a NaN model, and the ledger says why."""

from collections.abc import Iterable

import numpy as np
import pytest
from safetensors.numpy import load_file

from common.config import Value
from common.errors import RunFailed
from tests.federation import Federation, Run, on_train
from tests.server_app.misfits.replies import with_arrays

HUGE = with_arrays("update", lambda u: {name: np.full_like(x, 3e38) for name, x in u.items()})
ZERO = with_arrays("update", lambda u: {name: np.zeros_like(x) for name, x in u.items()})
NEGATIVE = with_arrays("buffers", lambda b: b | {"1.running_var": -b["1.running_var"]})


def tampered(federation: Federation, change: object, on: Iterable[int] = (), **config: Value) -> Run:
    wrap = on_train("site-2", change, on)  # type: ignore[arg-type]
    return federation.run(wrap=wrap, **{"weighting": "uniform", **config})  # type: ignore[arg-type]


def finite(run: Run) -> bool:
    return all(np.isfinite(x).all() for x in load_file(run.folder / "model.safetensors").values())


@pytest.mark.parametrize(
    "config", [{"uplink": "kept-bins"}, {"algorithm": "ssf", "ssf_projector": "spectral"}]
)
def test_coordinates_of_an_update_that_is_not_finite(
    federation: Federation, config: dict[str, Value]
) -> None:
    run = tampered(federation, HUGE, [1], **config)
    first = run.clients("site-2")[0]
    assert first.status == "quarantined" and "made whole" in first.reason
    assert finite(run) and run.end.status == "completed-degraded"
    assert [r.moved for r in run.rounds] == [True, True, True]


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"server_learning_rate": 10.0}, 'parameter "0.weight"'),
        ({"server_optimizer": "momentum", "server_learning_rate": 10.0}, 'parameter "0.weight"'),
        ({"algorithm": "scaffold"}, 'control of "0.weight"'),
    ],
)
def test_a_step_that_is_not_finite_is_not_taken(
    federation: Federation, config: dict[str, Value], what: str
) -> None:
    run = tampered(federation, HUGE, [2], keep_checkpoints=9, **config)
    assert run.error is None and run.end.status == "completed-degraded"
    assert [r.moved for r in run.rounds] == [True, False, True]
    reason = run.rounds[1].reason
    assert reason.startswith(f"{what} would hold NaN or infinity; the largest update is that of site-2")
    kept = [run.folder / f"checkpoints/round-{n:04d}/model.safetensors" for n in (1, 2)]
    assert kept[0].read_bytes() == kept[1].read_bytes()
    assert finite(run)


def test_a_run_without_a_step_to_take_fails(federation: Federation) -> None:
    run = tampered(federation, HUGE, server_learning_rate=10.0, max_failed_rounds=2)
    assert isinstance(run.error, RunFailed) and run.end.status == "failed"
    assert "2 rounds in a row did not move the model" in run.end.reason and "site-2" in run.end.reason
    assert finite(run)


def test_cgsv_beside_a_zero_update(federation: Federation) -> None:
    def both(app: object) -> object:
        return on_train("site-1", ZERO)(on_train("site-2", HUGE)(app))  # type: ignore[operator]

    run = federation.run(nodes=federation.nodes(2), wrap=both, weighting="cgsv", rounds=1)  # type: ignore[arg-type]
    assert run.error is None and run.rounds[0].moved and finite(run)


def test_a_negative_variance_is_refused(federation: Federation) -> None:
    run = tampered(federation, NEGATIVE, [1], model="tests.federation:normed_net")
    first = run.clients("site-2")[0]
    assert first.status == "quarantined" and '"1.running_var" holds a negative number' in first.reason
    assert run.end.loss is not None and run.end.status == "completed-degraded"


def test_a_last_model_without_a_finite_loss_is_not_simply_completed(federation: Federation) -> None:
    run = tampered(federation, HUGE, rounds=1)
    assert run.error is None and run.rounds[0].moved and finite(run)
    assert run.end.status == "completed-degraded" and run.end.reason == "the last model's loss is nan"


@pytest.mark.parametrize("remedy", [{"update_clip": 2.0}, {"aggregation": "median"}])
def test_a_huge_update_is_met_by_the_options_for_it(federation: Federation, remedy: dict[str, Value]) -> None:
    run = tampered(federation, HUGE, **remedy)
    assert run.end.status == "completed" and run.end.accuracy is not None and run.end.accuracy > 0.8
