"""The drift experiment: arithmetic by hand, pairs that are pairs, and a tiny one from end to end."""

import json
from pathlib import Path

import pytest

from common.errors import ConfigError
from common.ledger import ClientRecord, read
from specfed.experiments.drift import Result, Trial, as_json, as_markdown, drift, gains, last_of
from specfed.experiments.plan import Plan

PLAN = Plan("digits", 4, 0.5, 3, 2, 120, {"model": "mlp4", "batch-size": 16})


def test_the_last_five_rounds_are_averaged() -> None:
    assert last_of([0.9, 0.1, 0.2, 0.3, 0.4, 0.5]) == pytest.approx(0.3)
    assert last_of([0.2]) == 0.2


def test_gains_are_paired_by_seed_and_in_points() -> None:
    trials = (
        Trial(0, {"none": (0.1, 0.3), "fft": (0.2, 0.4)}),
        Trial(1, {"none": (0.5,), "fft": (0.45,)}),
    )
    result = Result(PLAN, ("none", "fft"), 120, 90, trials, 1.0)
    assert gains(result, "fft") == pytest.approx([10.0, -5.0])
    rows = as_markdown(result).splitlines()
    assert rows[2] == "| none | 0.350 | 0.200, 0.500 | 0.350 |  |"
    assert rows[3] == "| fft | 0.375 | 0.300, 0.450 | 0.375 | +10.0, -5.0 |"


def test_a_tiny_experiment_from_end_to_end(tmp_path: Path) -> None:
    told: list[str] = []
    result = drift(PLAN, ["none", "fft"], tmp_path, told.append)
    assert (result.train_rows, len(told)) == (120, 4)
    for trial in result.trials:
        assert set(trial.accuracy) == {"none", "fft"}
        assert all(len(a) == 3 and all(0 <= x <= 1 for x in a) for a in trial.accuracy.values())
        assert trial.accuracy["none"] != trial.accuracy["fft"]
    saved = json.loads((tmp_path / "result.json").read_text())
    assert saved == json.loads(json.dumps(as_json(result)))
    assert (tmp_path / "result.md").read_text() == as_markdown(result)
    assert "filter-ratio=0.05" in as_markdown(result)

    turns = [[(r.round, r.client, r.steps) for r in clients(tmp_path, name)] for name in ("none", "fft")]
    assert turns[0] == turns[1] and len(turns[0]) == 3 * 2  # the same cohorts, of half the nodes


def clients(folder: Path, name: str) -> list[ClientRecord]:
    (file,) = folder.glob(f"*seed1-{name}*/ledger.jsonl")
    return [r for r in read(file) if isinstance(r, ClientRecord)]


@pytest.mark.parametrize(
    ("plan", "filters", "sentence"),
    [
        (
            Plan("digits", 4, 0.5, 1, 1, 0, {"filter": "fft"}),
            ["none"],
            '"filter" is what the experiment itself sets',
        ),
        (Plan("digits", 4, 0.5, 1, 1, 0, {}), ["none", "ftt"], '"filter".*Did you mean "fft"'),
        (Plan("digits", 4, 0.5, 1, 0, 0, {}), ["none"], "--seeds takes at least 1; got 0"),
    ],
)
def test_plans_that_cannot_be_carried_out(
    plan: Plan, filters: list[str], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        drift(plan, filters, tmp_path, lambda line: None)
