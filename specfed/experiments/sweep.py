"""``sweep``: the same federation with other values of a few keys, all combinations, over several seeds.

For each seed the federation runs once for each combination, with the same split, initialisation, cohorts and
order of batches, so that runs of a seed can be compared in pairs: the spread between seeds is often larger
than the effect. The server tests the model of every round; the mean of the last five rounds is compared,
because single rounds jump. A run that fails, say because it diverges, is a result too: it has no accuracy,
and its seed no gain.

``drift``, whether filtering helps where nodes' data differ, is a sweep over filters.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np

from common.config import NodeConfig, RunConfig, Value
from common.datasets import load
from common.errors import ConfigError, RunFailed
from common.ledger import RoundRecord
from specfed import cluster, lab
from specfed.experiments.plan import (
    Plan,
    Say,
    dealt,
    markdown_table,
    mean_of,
    number,
    require_free,
    save,
    shown,
    some_rows,
)
from specfed.settings import parse_overrides

LAST = 5  # rounds that are averaged
DRIFT: Mapping[str, Value] = {
    "model": "resnet20",
    "weighting": "uniform",
    "fraction-train": 0.5,
    "local-epochs": 2,
    "batch-size": 50,
    "learning-rate": 0.1,
    "weight-decay": 0.001,
}

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")  # of runs
_LONGEST = 30  # characters of such a name, beside the seed

Axes = Mapping[str, Sequence[str]]  # the values of each key, as they are typed
Values = tuple[str, ...]  # one for each key


@dataclass(frozen=True)
class Run:
    """One run: the test accuracy after each round that it finished, 0..1, and why it failed, if it did."""

    accuracy: tuple[float, ...]
    failed: str = ""

    @property
    def last(self) -> float | None:
        """The mean over the last rounds, of at least one round; None if the run failed."""
        return None if self.failed else fmean(self.accuracy[-LAST:])

    @property
    def every(self) -> float | None:
        """The mean over all rounds; None if the run failed."""
        return None if self.failed else fmean(self.accuracy)


@dataclass(frozen=True)
class Trial:
    """One seed: its run with each combination that has been tried."""

    seed: int
    runs: Mapping[Values, Run]


@dataclass(frozen=True)
class Result:
    """What has been tried so far. The first combination is what the others are compared with."""

    plan: Plan
    usual: Mapping[str, Value]
    axes: Axes
    train_rows: int
    test_rows: int
    trials: tuple[Trial, ...]
    seconds: float

    @property
    def combinations(self) -> list[Values]:
        """All of them, the last key's values changing first."""
        return list(product(*self.axes.values()))


def parse_axes(words: Sequence[str]) -> Axes:
    """``key=value,value`` words as a mapping.

    Raises ConfigError for none, one that is no such word, what stands there twice, and a key that an
    experiment sets itself.
    """
    axes: dict[str, Sequence[str]] = {}
    if not words:
        raise ConfigError(
            "a sweep needs --over KEY=VALUE,VALUE, once or more; 'specfed config' lists the keys"
        )
    for word in words:
        key, _, values = word.partition("=")
        if not (key and values and all(values.split(","))):
            raise ConfigError(f'--over takes KEY=VALUE,VALUE; got "{word}"')
        if key in axes:
            raise ConfigError(f'--over names "{key}" twice; give all its values at once')
        axes[key] = values.split(",")
        if len(set(axes[key])) < len(axes[key]):
            raise ConfigError(f'--over gives "{key}" a value twice')
    require_free(axes)
    return axes


def sweep(plan: Plan, axes: Axes, folder: Path, say: Say, usual: Mapping[str, Value] | None = None) -> Result:
    """Run all combinations; their runs and ``result.json`` and ``result.md`` go into ``folder``.

    ``usual`` are keys that differ from a run's defaults and that the plan's settings can change. ``say`` gets
    a line after each run, and the files are written anew after each seed, so that an end before the last one
    loses little. A run that fails is noted, and the others go on. Raises SpecfedError for a plan that cannot
    be carried out.
    """
    started = time.monotonic()
    plan.check(axes)
    test = some_rows(load(plan.data, "test"), plan.rows)
    result = Result(plan, usual or {}, axes, 0, len(test), (), 0.0)
    configs = [_config(result, 0, values) for values in result.combinations]  # all, before hours of work
    with cluster.scratch() as scratch:
        file = scratch / "test.npz"
        np.savez(file, x_test=test.x, y_test=test.y, classes=np.array(test.classes))
        for seed, shares in dealt(plan, configs, scratch):
            runs = {}
            for values in result.combinations:
                runs[values] = _run(_config(result, seed, values, str(file)), shares.nodes, folder)
                say(f"seed {seed}  {name_of(axes, values):<10}  {_said(runs[values])}")
            trials = (*result.trials, Trial(seed, runs))
            seconds = time.monotonic() - started
            result = replace(result, train_rows=shares.train, trials=trials, seconds=seconds)
            save(folder, as_json(result), as_markdown(result))
    return result


def name_of(axes: Axes, values: Values) -> str:
    """A combination in a few words; the value alone if there is one key."""
    if len(axes) == 1:
        return values[0]
    return " ".join(f"{key}={value}" for key, value in zip(axes, values, strict=True))


def gains(result: Result, values: Values) -> list[float | None]:
    """Of each seed, how many points of accuracy the last rounds are better than with the first combination.

    None for a seed of which one of the two runs failed.
    """
    pairs = [(t.runs[result.combinations[0]].last, t.runs[values].last) for t in result.trials]
    return [None if base is None or last is None else 100 * (last - base) for base, last in pairs]


def as_json(result: Result) -> dict[str, object]:
    """The whole result for a file, with the numbers of its table."""
    combinations = [
        {
            "values": dict(zip(result.axes, values, strict=True)),
            "last": [t.runs[values].last for t in result.trials],
            "all": [t.runs[values].every for t in result.trials],
            "gain-points": gains(result, values),
            "runs": [asdict(t.runs[values]) for t in result.trials],
        }
        for values in result.combinations
    ]
    return {
        "experiment": "sweep",
        "plan": asdict(result.plan),
        "usual": dict(result.usual),
        "axes": {key: list(values) for key, values in result.axes.items()},
        "seeds": [trial.seed for trial in result.trials],
        "train-rows": result.train_rows,
        "test-rows": result.test_rows,
        "combinations": combinations,
        "seconds": result.seconds,
    }


def as_markdown(result: Result) -> str:
    """The result's table, and under it which runs failed and why, the settings and limits."""
    head = [*result.axes, f"accuracy, last {LAST} rounds", "by seed", "all rounds", "paired gain, points"]
    rows = []
    for values in result.combinations:
        runs = [trial.runs[values] for trial in result.trials]
        each = ", ".join("failed" if run.failed else number(run.last, 3) for run in runs)
        gain = ", ".join("-" if g is None else f"{g:+.1f}" for g in gains(result, values))
        last, every = mean_of(run.last for run in runs), mean_of(run.every for run in runs)
        base = values == result.combinations[0]
        rows.append([*values, number(last, 3), each, number(every, 3), "" if base else gain])
    failed = [
        f"- seed {trial.seed}, {name_of(result.axes, values)}, after {len(run.accuracy)} of "
        f"{result.plan.rounds} rounds: {run.failed}"
        for trial in result.trials
        for values, run in trial.runs.items()
        if run.failed
    ]
    why = ["Failed runs, which no mean and no gain counts:", "", *failed, ""] if failed else []
    return "\n".join([*markdown_table(head, rows), "", *why, small_print(result), ""])


def small_print(result: Result) -> str:
    """What was run, and what the numbers do not say."""
    plan = result.plan
    config = _config(result, 0, result.combinations[-1])
    every = shown(config, plan) | {key: config.as_dict()[key] for key in (*result.usual, "filter-ratio")}
    settings = " ".join(f"{key}={value}" for key, value in every.items() if key not in result.axes)
    tuned = (
        ""
        if "learning-rate" in result.axes
        else "; all ran at the same learning rate, which was not tuned for any of them"
    )
    return (
        f"Data {plan.data}: {result.train_rows:,} training rows, {plan.nodes} nodes, "
        f"{plan.split}, {plan.rounds} rounds, {result.test_rows:,} test rows. {settings}. "
        f"{result.seconds:.0f} s. Runs of one seed share split, initialisation, cohorts and order of "
        f"batches{tuned}."
    )


def _run(config: RunConfig, nodes: Sequence[NodeConfig], folder: Path) -> Run:
    """One run, whatever becomes of it."""
    accuracies, failed = [], ""
    try:
        for record in lab.run(config, nodes, folder):
            if isinstance(record, RoundRecord) and record.accuracy is not None:
                accuracies.append(record.accuracy)
    except RunFailed as error:
        failed = str(error)
    return Run(tuple(accuracies), failed)


def _said(run: Run) -> str:
    return f"failed: {run.failed}" if run.failed else f"accuracy, last {LAST}: {number(run.last, 3)}"


def _config(result: Result, seed: int, values: Values, test: str = "") -> RunConfig:
    chosen = parse_overrides(f"{key}={value}" for key, value in zip(result.axes, values, strict=True))
    plan = result.plan
    own: dict[str, Value] = {**chosen, "min-nodes": plan.nodes, "eval-data": test}
    return plan.config(seed, _NOT_IN_NAMES.sub("-", "-".join(values))[:_LONGEST], result.usual, own)
