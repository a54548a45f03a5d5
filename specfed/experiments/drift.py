"""``drift``: does filtering gradients help where nodes' data differ?

For each seed the federation runs once for each filter, with the same split, initialisation, cohorts and order
of batches, so that runs of a seed can be compared in pairs: the spread between seeds is often larger than the
effect. The server tests the model of every round; the mean of the last five rounds is compared, because
single rounds jump. A run that fails, say because it diverges, is a result too: it has no accuracy, and its
seed no gain.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from common.config import NodeConfig, RunConfig, Value
from common.datasets import load
from common.errors import RunFailed
from common.ledger import RoundRecord
from specfed import cluster, lab
from specfed.experiments.plan import Plan, Say, dealt, markdown_table, mean_of, number, save, shown, some_rows

LAST = 5  # rounds that are averaged
USUAL: Mapping[str, Value] = {
    "model": "resnet20",
    "weighting": "uniform",
    "fraction-train": 0.5,
    "local-epochs": 2,
    "batch-size": 50,
    "learning-rate": 0.1,
    "weight-decay": 0.001,
}


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
    """One seed: its run with each filter."""

    seed: int
    runs: Mapping[str, Run]


@dataclass(frozen=True)
class Result:
    """All seeds. The first filter is what the others are compared with."""

    plan: Plan
    filters: tuple[str, ...]
    train_rows: int
    test_rows: int
    trials: tuple[Trial, ...]
    seconds: float


def drift(plan: Plan, filters: Sequence[str], folder: Path, say: Say) -> Result:
    """Run the experiment; its runs and ``result.json`` and ``result.md`` go into ``folder``.

    ``say`` gets a line after each run. A run that fails is noted, and the others go on. Raises SpecfedError
    for a plan that cannot be carried out.
    """
    started = time.monotonic()
    plan.check(("filter",))
    for name in filters:
        _config(plan, 0, name)  # all of them, before hours of work
    test = some_rows(load(plan.data, "test"), plan.rows)
    trials, train_rows = [], 0
    with cluster.scratch() as scratch:
        file = scratch / "test.npz"
        np.savez(file, x_test=test.x, y_test=test.y, classes=np.array(test.classes))
        for seed, shares in dealt(plan, _config(plan, 0, filters[0]), scratch):
            train_rows = shares.train
            runs = {}
            for name in filters:
                runs[name] = _run(_config(plan, seed, name, str(file)), shares.nodes, folder)
                say(f"seed {seed}  {name:<10}  {_said(runs[name])}")
            trials.append(Trial(seed, runs))
    result = Result(plan, tuple(filters), train_rows, len(test), tuple(trials), time.monotonic() - started)
    save(folder, as_json(result), as_markdown(result))
    return result


def gains(result: Result, name: str) -> list[float | None]:
    """Of each seed, how much better the last rounds are than with the first filter, in points of accuracy.

    None for a seed of which one of the two runs failed.
    """
    pairs = [(t.runs[result.filters[0]].last, t.runs[name].last) for t in result.trials]
    return [None if base is None or last is None else 100 * (last - base) for base, last in pairs]


def as_json(result: Result) -> dict[str, object]:
    """The whole result for a file, with the numbers of its table."""
    table = {
        name: {
            "last": [t.runs[name].last for t in result.trials],
            "all": [t.runs[name].every for t in result.trials],
            "gain-points": gains(result, name),
        }
        for name in result.filters
    }
    return {"experiment": "drift", "table": table, **asdict(result)}


def as_markdown(result: Result) -> str:
    """The result's table, and under it which runs failed and why, the settings and limits."""
    head = ["filter", f"accuracy, last {LAST} rounds", "by seed", "all rounds", "paired gain, points"]
    rows = []
    for name in result.filters:
        runs = [trial.runs[name] for trial in result.trials]
        each = ", ".join("failed" if run.failed else number(run.last, 3) for run in runs)
        gain = ", ".join("-" if g is None else f"{g:+.1f}" for g in gains(result, name))
        last, every = mean_of(run.last for run in runs), mean_of(run.every for run in runs)
        base = name == result.filters[0]
        rows.append([name, number(last, 3), each, number(every, 3), "" if base else gain])
    failed = [
        f"- seed {trial.seed}, {name}, after {len(run.accuracy)} of {result.plan.rounds} rounds: {run.failed}"
        for trial in result.trials
        for name, run in trial.runs.items()
        if run.failed
    ]
    why = ["Failed runs, which no mean and no gain counts:", "", *failed, ""] if failed else []
    return "\n".join([*markdown_table(head, rows), "", *why, small_print(result), ""])


def small_print(result: Result) -> str:
    """What was run, and what the numbers do not say."""
    plan = result.plan
    config = _config(plan, 0, result.filters[-1])
    settings = " ".join(f"{key}={value}" for key, value in shown(config, plan).items() if key != "filter")
    return (
        f"Data {plan.data}: {result.train_rows:,} training rows, {plan.nodes} nodes, "
        f"Dirichlet({plan.alpha:g}), {plan.rounds} rounds, {result.test_rows:,} test rows. {settings} "
        f"fraction-train={config.fraction_train:g} weight-decay={config.weight_decay:g} "
        f"filter-ratio={config.filter_ratio:g}. {result.seconds:.0f} s. Runs of one seed share split, "
        "initialisation, cohorts and order of batches; every filter ran at the same learning rate, which "
        "was not tuned for any of them."
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


def _config(plan: Plan, seed: int, filter_: str, test: str = "") -> RunConfig:
    own: dict[str, Value] = {"filter": filter_, "min-nodes": plan.nodes, "eval-data": test}
    return plan.config(seed, filter_, USUAL, own)
