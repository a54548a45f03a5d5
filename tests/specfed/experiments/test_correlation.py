"""The experiments of papers: arithmetic by hand, and a tiny one from end to end."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from common.errors import ConfigError
from common.ledger import ClientRecord, Record
from specfed.cluster import deal
from specfed.experiments.correlation import (
    WEIGHTINGS,
    Result,
    Trial,
    as_json,
    as_markdown,
    contribution_correlation,
    mean_weights,
    pearson,
)
from specfed.experiments.plan import Plan, mean_of

PLAN = Plan("digits", 3, 0.5, 2, 2, 90, {"model": "mlp4", "batch-size": 16})


def weighed(round_: int, client: str, weight: float | None) -> Record:
    return ClientRecord(
        round=round_, client=client, status="accepted" if weight is not None else "missing", weight=weight
    )


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ([1, 2, 3], [2, 4, 6], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 2, 3], [1, 3, 2], 0.5),
        ([0, 0, 1, 1], [0, 1, 0, 1], 0.0),
        ([1, 2], [0.2, 0.2], None),
        ([0.1 + 0.2, 0.3, 0.3], [1, 2, 4], None),  # equal but for rounding
        ([1], [2], None),
        ([], [], None),
    ],
)
def test_pearson_by_hand(x: list[float], y: list[float], expected: float | None) -> None:
    assert pearson(x, y) == (None if expected is None else pytest.approx(expected, abs=1e-12))


def test_pearson_is_numpys() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 9)).tolist()
    assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1])


def test_weights_are_averaged_over_the_last_half_of_the_rounds() -> None:
    records = [
        weighed(n, c, w)
        for n, (a, b) in enumerate([(9, 9), (0.2, 0.8), (0.6, 0.4)], 1)
        for c, w in (("a", a), ("b", b))
    ]
    assert mean_weights(records, ["a", "b"], 3) == pytest.approx((0.4, 0.6))
    assert mean_weights(records, ["b", "a"], 3) == pytest.approx((0.6, 0.4))


def test_a_turn_without_a_weight_counts_as_nothing() -> None:
    records = [
        weighed(1, "a", 1.0),
        weighed(2, "a", None),
        weighed(2, "b", 1.0),
        weighed(3, "a", 0.5),
        weighed(3, "b", 0.5),
    ]
    assert mean_weights(records, ["a", "b"], 3) == pytest.approx((0.25, 0.75))


def test_the_mean_is_of_what_is_there() -> None:
    assert mean_of([0.5, None, 1.0]) == 0.75
    assert mean_of([None]) is None


def test_the_table_shows_each_seed_the_mean_and_what_is_undefined() -> None:
    weights = dict.fromkeys(WEIGHTINGS, (0.2, 0.3, 0.5)) | {"cgsv": (1 / 3, 1 / 3, 1 / 3)}
    accuracy = dict.fromkeys(WEIGHTINGS, 0.5)
    trials = (
        Trial(0, (10, 20, 1000), (0.2, 0.3, 0.5), weights, accuracy),
        Trial(1, (10, 20, 1000), (0.5, 0.4, 0.2), weights, accuracy),
    )
    lines = as_markdown(Result(PLAN, 90, 90, trials, 3.2)).splitlines()
    assert lines[2] == "| spectralfed | 1.00 | -1.00 | 0.00 | 0.500 | 0.500, 0.500 |"
    assert lines[5] == "| cgsv | - | - | - | 0.500 | 0.500, 0.500 |"
    assert "| 0 | site-3 | 1,000 | 0.500 | 0.500 | 0.500 | 0.500 | 0.333 |" in lines
    assert "Dirichlet(0.5)" in lines[-1] and "model=mlp4" in lines[-1] and "batch-size=16" in lines[-1]
    assert "standard deviation of 0.71" in lines[-1]


def test_a_tiny_experiment_from_end_to_end(tmp_path: Path) -> None:
    told: list[str] = []
    result = contribution_correlation(PLAN, tmp_path, told.append)
    assert (result.train_rows, result.test_rows) == (90, 90)
    assert len(told) == 2 * (3 + len(WEIGHTINGS))
    for trial in result.trials:
        assert sum(trial.examples) == 90
        assert all(0 <= a <= 1 for a in (*trial.alone, *trial.accuracy.values()))
        for weights in trial.weights.values():
            assert math.isclose(sum(weights), 1)
    assert result.trials[0].weights != result.trials[1].weights
    saved = json.loads((tmp_path / "result.json").read_text())
    assert saved == json.loads(json.dumps(as_json(result)))
    assert (tmp_path / "result.md").read_text() == as_markdown(result)
    assert len(list(tmp_path.glob("*/ledger.jsonl"))) == len(told)


def test_runs_that_fail_have_no_correlation_and_the_others_go_on(tmp_path: Path) -> None:
    told: list[str] = []
    plan = Plan("digits", 3, 0.5, 4, 1, 90, PLAN.settings | {"learning-rate": 1e6})
    result = contribution_correlation(plan, tmp_path, told.append)
    assert len(told) == 3 + len(WEIGHTINGS) and sum("3 rounds in a row" in line for line in told) == 6
    one, two, three = result.trials[0].alone  # the second has one step a round, and ends with some model
    assert one is three is None and two is not None and not result.trials[0].weights
    lines = as_markdown(result).splitlines()
    assert lines[2] == "| spectralfed | - | - | - | - |"
    assert sum(line.startswith("- seed 0, ") for line in lines) == 6
    assert json.loads((tmp_path / "result.json").read_text())["table"]["cgsv"]["pearson"] == [None]


def test_one_node_that_fails_alone_takes_the_seeds_correlation() -> None:
    weights = dict.fromkeys(WEIGHTINGS, (0.2, 0.3, 0.5))
    accuracy = dict.fromkeys(WEIGHTINGS, 0.5)
    trials = (
        Trial(0, (1, 2, 3), (0.2, None, 0.5), weights, accuracy, {"site-2 alone": "the loss is NaN"}),
        Trial(1, (1, 2, 3), (0.2, 0.3, 0.5), {"cgsv": (0.2, 0.3, 0.5)}, {"cgsv": 0.4}),
    )
    lines = as_markdown(Result(PLAN, 90, 90, trials, 3.2)).splitlines()
    assert lines[2] == "| spectralfed | - | - | - | 0.500 | 0.500, - |"
    assert lines[5] == "| cgsv | - | 1.00 | 1.00 | 0.450 | 0.500, 0.400 |"
    assert "| 0 | site-2 | 2 | - | 0.300 | 0.300 | 0.300 | 0.300 |" in lines
    assert "- seed 0, site-2 alone: the loss is NaN" in lines


def test_a_node_alone_takes_the_steps_it_takes_in_the_federation(tmp_path: Path) -> None:
    from common.ledger import read

    plan = Plan("digits", 2, 0.5, 2, 1, 60, {"model": "mlp4"}, "step-quantity-skew")
    result = contribution_correlation(plan, tmp_path, lambda line: None)
    assert result.trials[0].examples == (20, 40) and "rows, step-quantity-skew, " in as_markdown(result)

    def steps(pattern: str) -> list[int | None]:
        (file,) = tmp_path.glob(f"*{pattern}*/ledger.jsonl")
        return [r.steps for r in read(file) if isinstance(r, ClientRecord) and r.client == "site-1"]

    assert steps("alone-site-1") == steps("shapfed") and len(steps("shapfed")) == 2


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (
            Plan("digits", 3, 0.5, 1, 1, 0, {"weighting": "cgsv"}),
            '"weighting" is what the experiment itself sets',
        ),
        (Plan("digits", 3, 0.5, 1, 0, 0, {}), "--seeds takes at least 1; got 0"),
        (Plan("digits", 3, 0.5, 1, 1, -1, {}), "--rows takes at least 0; got -1"),
        (Plan("digits", 3, 0.5, 1, 1, 10**6, {}), "--rows takes at most the "),
        (Plan("digits", 1, 0.5, 1, 1, 0, {}), "--nodes takes at least 2; got 1"),
        (Plan("digits", 3, 0.5, 0, 1, 0, {}), '"rounds"'),
    ],
)
def test_plans_that_cannot_be_carried_out(plan: Plan, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        contribution_correlation(plan, tmp_path, lambda line: None)


def test_a_subset_is_random_rows_of_all_each_at_one_node(tmp_path: Path) -> None:
    shares = deal("digits", 3, "dirichlet", 0.5, 0, False, tmp_path, rows=90)
    rows = np.concatenate([np.load(node.rows) for node in shares.nodes])
    assert shares.train == 90 == len(np.unique(rows))
    assert rows.max() > 1000
