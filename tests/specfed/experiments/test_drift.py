"""The drift experiment: arithmetic by hand, pairs that are pairs, and a tiny one from end to end."""

import json
from pathlib import Path

import pytest
import torch

from common.checkpoint import load_arrays
from common.datasets import fingerprint, load
from common.errors import ConfigError
from common.evaluation import evaluate
from common.ledger import ClientRecord, Header, read
from common.models import build
from common.params import carried, load_into, trainable
from specfed.experiments.drift import Result, Run, Trial, as_json, as_markdown, drift, gains
from specfed.experiments.plan import Plan, some_rows

PLAN = Plan("digits", 4, 0.5, 3, 2, 120, {"model": "mlp4", "batch-size": 16})


def test_the_last_five_rounds_are_averaged() -> None:
    assert Run((0.9, 0.1, 0.2, 0.3, 0.4, 0.5)).last == pytest.approx(0.3)
    assert Run((0.9, 0.1, 0.2, 0.3, 0.4, 0.5)).every == pytest.approx(0.4)
    assert Run((0.2,)).last == 0.2
    assert Run((0.2, 0.3), "diverged").last is None is Run((0.2, 0.3), "diverged").every


def test_gains_are_paired_by_seed_and_in_points() -> None:
    trials = (
        Trial(0, {"none": Run((0.1, 0.3)), "fft": Run((0.2, 0.4))}),
        Trial(1, {"none": Run((0.5,)), "fft": Run((0.45,))}),
    )
    result = Result(PLAN, ("none", "fft"), 120, 90, trials, 1.0)
    assert gains(result, "fft") == pytest.approx([10.0, -5.0])
    rows = as_markdown(result).splitlines()
    assert rows[2] == "| none | 0.350 | 0.200, 0.500 | 0.350 |  |"
    assert rows[3] == "| fft | 0.375 | 0.300, 0.450 | 0.375 | +10.0, -5.0 |"
    assert "ailed" not in as_markdown(result)


def test_a_failed_run_has_no_accuracy_and_its_seed_no_gain() -> None:
    trials = (
        Trial(0, {"none": Run((0.1, 0.3)), "fft": Run((0.2,), "the nodes are gone"), "gd": Run((0.4, 0.4))}),
        Trial(1, {"none": Run((), "the loss is NaN"), "fft": Run((0.45,)), "gd": Run((0.5, 0.6))}),
    )
    result = Result(PLAN, ("none", "fft", "gd"), 120, 90, trials, 1.0)
    assert gains(result, "fft") == [None, None]
    assert gains(result, "gd") == [pytest.approx(20.0), None]
    rows = as_markdown(result).splitlines()
    assert rows[2] == "| none | 0.200 | 0.200, failed | 0.200 |  |"
    assert rows[3] == "| fft | 0.450 | failed, 0.450 | 0.450 | -, - |"
    assert rows[4] == "| gd | 0.475 | 0.400, 0.550 | 0.475 | +20.0, - |"
    assert rows[6:10] == [
        "Failed runs, which no mean and no gain counts:",
        "",
        "- seed 0, fft, after 1 of 3 rounds: the nodes are gone",
        "- seed 1, none, after 0 of 3 rounds: the loss is NaN",
    ]


def test_an_experiment_goes_on_after_runs_that_diverge(tmp_path: Path) -> None:
    told: list[str] = []
    plan = Plan("digits", 4, 0.5, 6, 2, 120, PLAN.settings | {"learning-rate": 1e6})
    result = drift(plan, ["none", "fft"], tmp_path, told.append)
    assert len(told) == 4 and all("failed: 3 rounds in a row" in line for line in told)
    for trial in result.trials:
        for run in trial.runs.values():
            assert run.failed and len(run.accuracy) < 6
    assert (tmp_path / "result.md").read_text().count("failed") == 4
    assert json.loads((tmp_path / "result.json").read_text())["table"]["fft"]["gain-points"] == [None, None]


def test_a_tiny_experiment_from_end_to_end(tmp_path: Path) -> None:
    told: list[str] = []
    result = drift(PLAN, ["none", "fft"], tmp_path, told.append)
    assert (result.train_rows, len(told)) == (120, 4)
    for trial in result.trials:
        assert set(trial.runs) == {"none", "fft"}
        assert all(len(r.accuracy) == 3 and not r.failed for r in trial.runs.values())
        assert trial.runs["none"] != trial.runs["fft"]
    saved = json.loads((tmp_path / "result.json").read_text())
    assert saved == json.loads(json.dumps(as_json(result)))
    assert (tmp_path / "result.md").read_text() == as_markdown(result)
    assert "filter-ratio=0.05" in as_markdown(result)

    turns = [[(r.round, r.client, r.steps) for r in clients(tmp_path, name)] for name in ("none", "fft")]
    assert turns[0] == turns[1] and len(turns[0]) == 3 * 2  # the same cohorts, of half the nodes

    (file,) = tmp_path.glob("*seed1-fft*/ledger.jsonl")
    header = next(r for r in read(file) if isinstance(r, Header))
    test = some_rows(load("digits", "test"), 120)
    assert header.eval_fingerprint == fingerprint(test) and result.test_rows == len(test) == 120
    model = build("mlp4", test.input_shape, test.classes, 1)
    load_into(trainable(model) | carried(model), load_arrays(file.parent / "model.safetensors"))
    tested = evaluate(model, test, torch.device("cpu")).accuracy
    assert result.trials[1].runs["fft"].accuracy[-1] == pytest.approx(tested)


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
