"""``contribution-correlation``: does a node's weight tell how much its data are worth?

Every node trains alone once, and the model that it ends with is tested; then the federation runs once for
each weighting. Pearson's correlation of the nodes' mean weights with those accuracies is what contribution
papers report. A run that fails, say because a node with two classes diverges alone, is a result too: what it
would have been compared in has no correlation.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from common.config import NodeConfig, RunConfig, Value
from common.datasets import Examples, load
from common.errors import RunFailed
from common.ledger import ClientRecord, Record
from specfed import cluster
from specfed.experiments.plan import (
    Plan,
    Say,
    dealt,
    markdown_table,
    mean_of,
    number,
    run_and_test,
    save,
    shown,
    some_rows,
)

WEIGHTINGS = ("spectralfed", "spectralfuse", "shapfed", "cgsv")


@dataclass(frozen=True)
class Trial:
    """One seed. Tuples run over the nodes, mappings over the weightings."""

    seed: int
    examples: tuple[int, ...]
    alone: tuple[float | None, ...]  # test accuracy of a node's own model, 0..1; None if it failed
    weights: Mapping[str, tuple[float, ...]]  # means over the last half of the rounds; none of a failed run
    accuracy: Mapping[str, float]  # of the federation's last model on the same test rows, likewise
    failed: Mapping[str, str] = field(default_factory=dict)  # why, by the run's name


@dataclass(frozen=True)
class Result:
    """All seeds of an experiment."""

    plan: Plan
    train_rows: int
    test_rows: int
    trials: tuple[Trial, ...]
    seconds: float


def contribution_correlation(plan: Plan, folder: Path, say: Say) -> Result:
    """Run the experiment; its runs and ``result.json`` and ``result.md`` go into ``folder``.

    ``say`` gets a line after each run, and the files are written anew after each seed. A node on its own is a
    federation of one: the same local steps, on the same batches, from the same start. Raises SpecfedError for
    a plan that cannot be carried out.
    """
    started = time.monotonic()
    plan.check(("weighting", "fraction-train", "min-replies"))
    test = some_rows(load(plan.data, "test"), plan.rows)
    result = Result(plan, 0, len(test), (), 0.0)
    with cluster.scratch() as scratch:
        for seed, shares in dealt(plan, [_config(plan, 0, WEIGHTINGS[0], 1)], scratch):
            trials = (*result.trials, _trial(plan, seed, shares.nodes, test, folder, say))
            result = Result(plan, shares.train, len(test), trials, time.monotonic() - started)
            save(folder, as_json(result), as_markdown(result))
    return result


def pearson(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's correlation, -1 to 1; None if one side is constant or there are fewer than two points."""
    a, b = (np.asarray(v, dtype=np.float64) - np.mean(v) if len(v) else np.zeros(0) for v in (x, y))
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    # Rounding of equal numbers must not pass for a spread.
    flat = any(np.ptp(v) <= 1e-12 * np.abs(v).max() if len(v) else True for v in (x, y))
    return None if flat or length == 0 else float(np.clip(a @ b / length, -1.0, 1.0))


def mean_weights(records: Iterable[Record], nodes: Sequence[str], rounds: int) -> tuple[float, ...]:
    """Each node's mean weight over the last half of the rounds; a turn that gave none counts as 0."""
    late = range(rounds // 2 + 1, rounds + 1)
    sums = dict.fromkeys(nodes, 0.0)
    for record in records:
        if isinstance(record, ClientRecord) and record.round in late:
            sums[record.client] += record.weight or 0.0
    return tuple(total / len(late) for total in sums.values())


def correlations(trials: Sequence[Trial], weighting: str) -> list[float | None]:
    """Of each seed, the correlation of the mean weights with the accuracies of nodes on their own.

    None where it is undefined, or a run failed that it takes.
    """
    return [_r(trial.weights.get(weighting), trial.alone) for trial in trials]


def _r(weights: Sequence[float] | None, alone: Sequence[float | None]) -> float | None:
    there = [accuracy for accuracy in alone if accuracy is not None]
    return pearson(weights, there) if weights and len(there) == len(alone) else None


def as_json(result: Result) -> dict[str, object]:
    """The whole result for a file, with the correlations and means of its table."""
    table = {
        weighting: {
            "pearson": (r := correlations(result.trials, weighting)),
            "pearson-mean": mean_of(r),
            "accuracy-mean": mean_of(trial.accuracy.get(weighting) for trial in result.trials),
        }
        for weighting in WEIGHTINGS
    }
    return {"experiment": "contribution-correlation", "table": table, **asdict(result)}


def as_markdown(result: Result) -> str:
    """The result's table, and under it the settings and limits."""
    seeds = [trial.seed for trial in result.trials]
    head = ["weighting", *(f"r, seed {seed}" for seed in seeds), "r, mean", "accuracy, mean", "by seed"]
    rows = []
    for weighting in WEIGHTINGS:
        r = correlations(result.trials, weighting)
        accuracies = [trial.accuracy.get(weighting) for trial in result.trials]
        each = ", ".join(number(a, 3) for a in accuracies)
        rows.append(
            [weighting, *(number(v, 2) for v in (*r, mean_of(r))), number(mean_of(accuracies), 3), each]
        )
    failed = [f"- seed {t.seed}, {name}: {why}" for t in result.trials for name, why in t.failed.items()]
    why = ["", "Failed runs, and so no r where they would count:", "", *failed] if failed else []
    return "\n".join(
        [*markdown_table(head, rows), "", *_nodes_table(result), *why, "", small_print(result), ""]
    )


def small_print(result: Result) -> str:
    """What was run, and what the numbers do not say."""
    plan = result.plan
    settings = " ".join(
        f"{key}={value}" for key, value in shown(_config(plan, 0, WEIGHTINGS[0], plan.nodes), plan).items()
    )
    return (
        f"r: Pearson's correlation over {plan.nodes} nodes of the mean weight in the last half of "
        f"{plan.rounds} rounds with the test accuracy of the node's own model after as many local steps. "
        f"Data {plan.data}: {result.train_rows:,} training rows, {plan.split}, "
        f"{result.test_rows:,} test rows. {settings}. {result.seconds:.0f} s. "
        "A single r over so few nodes is weak evidence: those of unrelated numbers have a standard "
        f"deviation of {1 / math.sqrt(plan.nodes - 1):.2f}."
    )


# --- runs --------------------------------------------------------------------------------------------


def _trial(
    plan: Plan, seed: int, nodes: Sequence[NodeConfig], test: Examples, folder: Path, say: Say
) -> Trial:
    names = [node.name for node in nodes]
    examples = tuple(len(np.load(node.rows, allow_pickle=False)) for node in nodes)
    alone: list[float | None] = []
    failed: dict[str, str] = {}
    for node, rows in zip(nodes, examples, strict=True):
        config = _config(plan, seed, "uniform", 1, f"alone-{node.name}")
        try:
            alone.append(run_and_test(config, [node], folder, test)[1])
        except RunFailed as error:
            alone.append(None)
            failed[f"{node.name} alone"] = str(error)
        said = failed.get(f"{node.name} alone") or f"accuracy {number(alone[-1], 3)}"
        say(f"seed {seed}  {node.name} alone  {rows:>6,} rows  {said}")
    weights, accuracy = {}, {}
    for weighting in WEIGHTINGS:
        config = _config(plan, seed, weighting, plan.nodes)
        try:
            records, accuracy[weighting] = run_and_test(config, nodes, folder, test)
        except RunFailed as error:
            failed[weighting] = str(error)
            say(f"seed {seed}  {weighting:<12}  {error}")
            continue
        weights[weighting] = mean_weights(records, names, plan.rounds)
        r = number(_r(weights[weighting], alone), 2)
        say(f"seed {seed}  {weighting:<12}  r {r:>5}  accuracy {accuracy[weighting]:.3f}")
    return Trial(seed, examples, tuple(alone), weights, accuracy, failed)


def _config(plan: Plan, seed: int, weighting: str, nodes: int, name: str = "") -> RunConfig:
    own: dict[str, Value] = {"weighting": weighting, "min-nodes": nodes, "min-replies": nodes}
    return plan.config(seed, name or weighting, {"filter": "none"}, own)


# --- words -------------------------------------------------------------------------------------------


def _nodes_table(result: Result) -> list[str]:
    """For each seed and node its rows, its own accuracy and its mean weights."""
    head = ["seed", "node", "rows", "alone", *WEIGHTINGS]
    rows = []
    for trial in result.trials:
        for i, count in enumerate(trial.examples):
            given = [trial.weights.get(weighting) for weighting in WEIGHTINGS]
            weights = [number(weight[i] if weight else None, 3) for weight in given]
            rows.append([str(trial.seed), f"site-{i + 1}", f"{count:,}", number(trial.alone[i], 3), *weights])
    return markdown_table(head, rows)
