"""Sweeps: arithmetic by hand, pairs that are pairs, and tiny ones from end to end."""

import json
import re
from math import prod
from pathlib import Path

import pytest
import torch
from torch import nn

from common.checkpoint import load_arrays
from common.datasets import fingerprint, load
from common.errors import ConfigError
from common.evaluation import evaluate
from common.ledger import ClientRecord, Header, read
from common.models import build
from common.params import carried, load_into, trainable
from specfed.experiments.plan import Plan, some_rows
from specfed.experiments.sweep import (
    DRIFT,
    Result,
    Run,
    Trial,
    as_json,
    as_markdown,
    gains,
    parse_axes,
    sweep,
)

PLAN = Plan("digits", 4, 0.5, 3, 2, 120, {"model": "mlp4", "batch-size": 16})
FILTERS = {"filter": ["none", "fft"]}
FLAT = f"{__name__}:flat"


def flat(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), classes))


def test_the_last_five_rounds_are_averaged() -> None:
    assert Run((0.9, 0.1, 0.2, 0.3, 0.4, 0.5)).last == pytest.approx(0.3)
    assert Run((0.9, 0.1, 0.2, 0.3, 0.4, 0.5)).every == pytest.approx(0.4)
    assert Run((0.2,)).last == 0.2
    assert Run((0.2, 0.3), "diverged").last is None is Run((0.2, 0.3), "diverged").every


def test_gains_are_paired_by_seed_and_in_points() -> None:
    trials = (
        Trial(0, {("none",): Run((0.1, 0.3)), ("fft",): Run((0.2, 0.4))}),
        Trial(1, {("none",): Run((0.5,)), ("fft",): Run((0.45,))}),
    )
    result = Result(PLAN, DRIFT, {"filter": ["none", "fft"]}, 120, 90, trials, 1.0)
    assert gains(result, ("fft",)) == pytest.approx([10.0, -5.0])
    rows = as_markdown(result).splitlines()
    assert rows[2] == "| none | 0.350 | 0.200, 0.500 | 0.350 |  |"
    assert rows[3] == "| fft | 0.375 | 0.300, 0.450 | 0.375 | +10.0, -5.0 |"
    assert "ailed" not in as_markdown(result)


def test_a_failed_run_has_no_accuracy_and_its_seed_no_gain() -> None:
    trials = (
        Trial(
            0,
            {
                ("none",): Run((0.1, 0.3)),
                ("fft",): Run((0.2,), "the nodes are gone"),
                ("gd",): Run((0.4, 0.4)),
            },
        ),
        Trial(1, {("none",): Run((), "the loss is NaN"), ("fft",): Run((0.45,)), ("gd",): Run((0.5, 0.6))}),
    )
    result = Result(PLAN, {}, {"filter": ["none", "fft", "gd"]}, 120, 90, trials, 1.0)
    assert gains(result, ("fft",)) == [None, None]
    assert gains(result, ("gd",)) == [pytest.approx(20.0), None]
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
    result = sweep(plan, FILTERS, tmp_path, told.append, DRIFT)
    assert len(told) == 4 and all("failed: 3 rounds in a row" in line for line in told)
    for trial in result.trials:
        for run in trial.runs.values():
            assert run.failed and len(run.accuracy) < 6
    assert (tmp_path / "result.md").read_text().count("failed") == 4
    saved = json.loads((tmp_path / "result.json").read_text())
    assert saved["combinations"][1]["gain-points"] == [None, None]


def test_a_tiny_experiment_from_end_to_end(tmp_path: Path) -> None:
    told: list[str] = []
    result = sweep(PLAN, FILTERS, tmp_path, told.append, DRIFT)
    assert (result.train_rows, len(told)) == (120, 4)
    for trial in result.trials:
        assert list(trial.runs) == [("none",), ("fft",)]
        assert all(len(r.accuracy) == 3 and not r.failed for r in trial.runs.values())
        assert trial.runs["none",] != trial.runs["fft",]
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
    assert result.trials[1].runs["fft",].accuracy[-1] == pytest.approx(tested)


def clients(folder: Path, name: str) -> list[ClientRecord]:
    (file,) = folder.glob(f"*seed1-{name}*/ledger.jsonl")
    return [r for r in read(file) if isinstance(r, ClientRecord)]


def test_all_combinations_run_and_the_first_is_the_base(tmp_path: Path) -> None:
    told: list[str] = []
    plan = Plan("digits", 3, 0.5, 2, 1, 120, {"model": "mlp4"})
    axes = parse_axes(["learning-rate=0.1,0.01", f"model=mlp4,{FLAT}"])
    with pytest.raises(ConfigError, match='"model" is what the experiment itself sets'):
        sweep(plan, axes, tmp_path, told.append)
    result = sweep(Plan("digits", 3, 0.5, 2, 1, 120, {}), axes, tmp_path, told.append)
    assert [line.split("  ")[1] for line in told] == [
        "learning-rate=0.1 model=mlp4",
        f"learning-rate=0.1 model={FLAT}",
        "learning-rate=0.01 model=mlp4",
        f"learning-rate=0.01 model={FLAT}",
    ]
    rows = as_markdown(result).splitlines()
    assert rows[0].startswith("| learning-rate | model | accuracy, last 5 rounds |")
    assert rows[2].startswith("| 0.1 | mlp4 | ") and rows[2].endswith("|  |")
    assert "not tuned" not in rows[-1] and "model=" not in rows[-1]
    headers = [next(iter(read(file))) for file in tmp_path.glob("*/ledger.jsonl")]
    ran = {(h.config["learning-rate"], h.config["model"]) for h in headers if isinstance(h, Header)}
    assert ran == {(rate, name) for rate in (0.1, 0.01) for name in ("mlp4", FLAT)}
    assert len(list(tmp_path.glob("*seed0-0.01-tests.specfed.experiments*"))) == 1


def test_what_is_done_is_on_the_disk_when_the_next_seed_begins(tmp_path: Path) -> None:
    def stop_in_the_second_seed(line: str) -> None:
        if line.startswith("seed 1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(PLAN, FILTERS, tmp_path, stop_in_the_second_seed)
    assert json.loads((tmp_path / "result.json").read_text())["seeds"] == [0]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "needs --over KEY=VALUE,VALUE, once or more"),
        (["filter"], '--over takes KEY=VALUE,VALUE; got "filter"'),
        (["filter=none,"], '--over takes KEY=VALUE,VALUE; got "filter=none,"'),
        (["filter=none", "filter=fft"], '--over names "filter" twice'),
        (["filter=none,none"], '--over gives "filter" a value twice'),
        (["seed=1,2"], '"seed" is what the experiment itself sets'),
    ],
)
def test_what_cannot_be_compared(words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        parse_axes(words)


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
        sweep(plan, {"filter": filters}, tmp_path, lambda line: None)
    assert not list(tmp_path.iterdir())
