"""``drift``: does filtering gradients help where nodes' data differ?

For each seed the federation runs once for each filter, with the same split, initialisation, cohorts and order
of batches, so that runs of a seed can be compared in pairs: the spread between seeds is often larger than the
effect. The model of every round is tested; the mean of the last five rounds is compared, because single
rounds jump.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from common.checkpoint import load_arrays
from common.config import NodeConfig, RunConfig, Value
from common.datasets import Examples, load
from common.ledger import Header, to_json
from specfed import cluster, lab
from specfed.experiments.plan import Plan, Say, accuracy, number, row, shown, some_rows

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
class Trial:
    """One seed: of each filter the test accuracy after each round, 0..1."""

    seed: int
    accuracy: Mapping[str, tuple[float, ...]]


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

    ``say`` gets a line after each run. Raises SpecfedError for a plan that cannot be carried out.
    """
    started = time.monotonic()
    plan.check(("filter",))
    configs = {name: _config(plan, 0, name) for name in filters}  # all of them, before hours of work
    test = some_rows(load(plan.data, "test"), plan.rows)
    trials, train_rows = [], 0
    with cluster.scratch() as scratch:
        for seed in range(plan.seeds):
            rows = scratch / f"seed-{seed}"
            shares = cluster.deal(
                plan.data, plan.nodes, "dirichlet", plan.alpha, seed, False, rows, rows=plan.rows
            )
            cluster.try_model(configs[filters[0]], shares)
            train_rows = shares.train
            sites = [node.model_copy(update={"validation": 0.0}) for node in shares.nodes]
            found = {}
            for name in filters:
                found[name] = _accuracies(_config(plan, seed, name), sites, folder, test)
                say(f"seed {seed}  {name:<10}  accuracy, last {LAST}: {last_of(found[name]):.3f}")
            trials.append(Trial(seed, found))
    result = Result(plan, tuple(filters), train_rows, len(test), tuple(trials), time.monotonic() - started)
    (folder / "result.json").write_text(to_json(as_json(result)), encoding="utf-8")
    (folder / "result.md").write_text(as_markdown(result), encoding="utf-8")
    return result


def last_of(accuracies: Sequence[float]) -> float:
    """The mean over the last rounds, of at least one round."""
    return fmean(accuracies[-LAST:])


def gains(result: Result, name: str) -> list[float]:
    """Of each seed, how much better the last rounds are than with the first filter, in points of accuracy."""
    base = result.filters[0]
    return [100 * (last_of(t.accuracy[name]) - last_of(t.accuracy[base])) for t in result.trials]


def as_json(result: Result) -> dict[str, object]:
    """The whole result for a file, with the numbers of its table."""
    table = {
        name: {
            "last": [last_of(t.accuracy[name]) for t in result.trials],
            "all": [fmean(t.accuracy[name]) for t in result.trials],
            "gain-points": gains(result, name),
        }
        for name in result.filters
    }
    return {"experiment": "drift", "table": table, **asdict(result)}


def as_markdown(result: Result) -> str:
    """The result's table, and under it the settings and limits."""
    head = ["filter", f"accuracy, last {LAST} rounds", "by seed", "all rounds", "paired gain, points"]
    lines = [row(head), row(["---"] * len(head))]
    for name in result.filters:
        last = [last_of(t.accuracy[name]) for t in result.trials]
        gain = "" if name == result.filters[0] else ", ".join(f"{g:+.1f}" for g in gains(result, name))
        every = fmean(fmean(t.accuracy[name]) for t in result.trials)
        each = ", ".join(number(a, 3) for a in last)
        lines.append(row([name, number(fmean(last), 3), each, number(every, 3), gain]))
    return "\n".join([*lines, "", small_print(result), ""])


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


def _accuracies(
    config: RunConfig, nodes: Sequence[NodeConfig], folder: Path, test: Examples
) -> tuple[float, ...]:
    """The test accuracy after each round of a run."""
    (header,) = (r for r in lab.run(config, nodes, folder) if isinstance(r, Header))
    checkpoints = sorted((Path(header.folder) / "checkpoints").glob("round-*"))
    return tuple(
        accuracy(
            config,
            load_arrays(path / "model.safetensors") | load_arrays(path / "buffers.safetensors"),
            test,
        )
        for path in checkpoints
    )


def _config(plan: Plan, seed: int, filter_: str) -> RunConfig:
    own: dict[str, Value] = {"filter": filter_, "min-nodes": plan.nodes, "keep-checkpoints": plan.rounds}
    return plan.config(seed, filter_, USUAL, own)
