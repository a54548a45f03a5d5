"""Experiments of papers, run again on any data: what came out, as a table with its settings.

``contribution-correlation``: does a node's weight tell how much its data are worth? Every node trains alone
once, and the model that it ends with is tested; then the federation runs once for each weighting. Pearson's
correlation of the nodes' mean weights with those accuracies is what contribution papers report.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from common.config import NodeConfig, RunConfig, Value
from common.datasets import Examples, load
from common.errors import ConfigError
from common.ledger import ClientRecord, Header, Record, to_json
from common.seeding import stream
from specfed import cluster, lab
from specfed.settings import checked

WEIGHTINGS = ("spectralfed", "spectralfuse", "shapfed", "cgsv")
OWN_KEYS = (  # what the experiment itself sets
    "run-name",
    "seed",
    "rounds",
    "resume",
    "weighting",
    "contribution",
    "eval-data",
    "fraction-train",
    "min-nodes",
    "min-replies",
)
DEFAULTS: Mapping[str, Value] = {"filter": "none", "threads": 1, "tensorboard": False, "keep-checkpoints": 1}

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """The experiment. ``settings`` are the keys of a run that differ from ``DEFAULTS`` and a run's own."""

    data: str
    nodes: int
    alpha: float  # of the Dirichlet split
    rounds: int
    seeds: int  # 0, 1, ...: each one a subset, a split and an initialisation
    rows: int  # random training rows that are used, and at most so many test rows; 0 uses all
    settings: Mapping[str, Value]


@dataclass(frozen=True)
class Trial:
    """One seed. Tuples run over the nodes, mappings over the weightings."""

    seed: int
    examples: tuple[int, ...]
    alone: tuple[float, ...]  # test accuracy of a node's own model, 0..1
    weights: Mapping[str, tuple[float, ...]]  # means over the last half of the rounds
    accuracy: Mapping[str, float]  # of the federation's last model on the same test rows


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

    ``say`` gets a line after each run. A node on its own is a federation of one: the same local steps, on the
    same batches, from the same start. Raises SpecfedError for a plan that cannot be carried out.
    """
    started = time.monotonic()
    _check(plan)
    test = _some(load(plan.data, "test"), plan.rows)
    trials, train_rows = [], 0
    with cluster.scratch() as scratch:
        for seed in range(plan.seeds):
            rows = scratch / f"seed-{seed}"
            shares = cluster.deal(
                plan.data, plan.nodes, "dirichlet", plan.alpha, seed, False, rows, rows=plan.rows
            )
            cluster.try_model(_config(plan, seed, WEIGHTINGS[0], 1), shares)
            train_rows = shares.train
            trials.append(_trial(plan, seed, shares.nodes, test, folder, say))
    result = Result(plan, train_rows, len(test), tuple(trials), time.monotonic() - started)
    (folder / "result.json").write_text(to_json(as_json(result)), encoding="utf-8")
    (folder / "result.md").write_text(as_markdown(result), encoding="utf-8")
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
    """Of each seed, the correlation of the mean weights with the accuracies of nodes on their own."""
    return [pearson(trial.weights[weighting], trial.alone) for trial in trials]


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of those values that are there; None if none is."""
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def as_json(result: Result) -> dict[str, object]:
    """The whole result for a file, with the correlations and means of its table."""
    table = {
        weighting: {
            "pearson": (r := correlations(result.trials, weighting)),
            "pearson-mean": mean_of(r),
            "accuracy-mean": mean_of(trial.accuracy[weighting] for trial in result.trials),
        }
        for weighting in WEIGHTINGS
    }
    return {"experiment": "contribution-correlation", "table": table, **asdict(result)}


def as_markdown(result: Result) -> str:
    """The result's table, and under it the settings and limits."""
    seeds = [trial.seed for trial in result.trials]
    head = ["weighting", *(f"r, seed {seed}" for seed in seeds), "r, mean", "accuracy, mean", "by seed"]
    lines = [_row(head), _row(["---"] * len(head))]
    for weighting in WEIGHTINGS:
        r = correlations(result.trials, weighting)
        accuracies = [trial.accuracy[weighting] for trial in result.trials]
        each = ", ".join(_number(a, 3) for a in accuracies)
        lines.append(
            _row(
                [weighting, *(_number(v, 2) for v in (*r, mean_of(r))), _number(mean_of(accuracies), 3), each]
            )
        )
    return "\n".join([*lines, "", *_nodes_table(result), "", small_print(result), ""])


def small_print(result: Result) -> str:
    """What was run, and what the numbers do not say."""
    plan = result.plan
    settings = " ".join(f"{key}={value}" for key, value in _shown(plan).items())
    return (
        f"r: Pearson's correlation over {plan.nodes} nodes of the mean weight in the last half of "
        f"{plan.rounds} rounds with the test accuracy of the node's own model after as many local steps. "
        f"Data {plan.data}: {result.train_rows:,} training rows, Dirichlet({plan.alpha:g}), "
        f"{result.test_rows:,} test rows. {settings}. {result.seconds:.0f} s. "
        "A single r over so few nodes is weak evidence: those of unrelated numbers have a standard "
        f"deviation of {1 / math.sqrt(plan.nodes - 1):.2f}."
    )


# --- runs --------------------------------------------------------------------------------------------


def _trial(
    plan: Plan, seed: int, nodes: Sequence[NodeConfig], test: Examples, folder: Path, say: Say
) -> Trial:
    sites = [node.model_copy(update={"validation": 0.0}) for node in nodes]
    names = [site.name for site in sites]
    examples = tuple(len(np.load(site.rows, allow_pickle=False)) for site in sites)
    alone = []
    for site, rows in zip(sites, examples, strict=True):
        config = _config(plan, seed, "uniform", 1, f"alone-{site.name}")
        alone.append(_run(config, [site], folder, test)[1])
        say(f"seed {seed}  {site.name} alone  {rows:>6,} rows  accuracy {alone[-1]:.3f}")
    weights, accuracy = {}, {}
    for weighting in WEIGHTINGS:
        records, accuracy[weighting] = _run(_config(plan, seed, weighting, plan.nodes), sites, folder, test)
        weights[weighting] = mean_weights(records, names, plan.rounds)
        r = _number(pearson(weights[weighting], alone), 2)
        say(f"seed {seed}  {weighting:<12}  r {r:>5}  accuracy {accuracy[weighting]:.3f}")
    return Trial(seed, examples, tuple(alone), weights, accuracy)


def _run(
    config: RunConfig, nodes: Sequence[NodeConfig], folder: Path, test: Examples
) -> tuple[list[Record], float]:
    """One run's records, and the test accuracy of its last model."""
    from common import models
    from common.checkpoint import load_arrays
    from common.devices import resolve
    from common.evaluation import evaluate
    from common.params import carried, load_into, trainable

    records = list(lab.run(config, nodes, folder))
    (header,) = (record for record in records if isinstance(record, Header))
    model = models.build(config.model, test.input_shape, test.classes, config.seed)
    arrays = load_arrays(Path(header.folder) / "model.safetensors")
    load_into(trainable(model) | carried(model), arrays)
    device = resolve(config.device)
    return records, evaluate(model.to(device), test, device).accuracy


def _config(plan: Plan, seed: int, weighting: str, nodes: int, name: str = "") -> RunConfig:
    own: dict[str, Value] = {
        "run-name": f"seed{seed}-{name or weighting}",
        "seed": seed,
        "rounds": plan.rounds,
        "weighting": weighting,
        "min-nodes": nodes,
        "min-replies": nodes,
    }
    return checked({**DEFAULTS, **plan.settings, **own}, {})


def _check(plan: Plan) -> None:
    for key in plan.settings:
        if key in OWN_KEYS:
            raise ConfigError(f'"{key}" is what the experiment itself sets; its options are in --help')
    for option, value, least in (("--seeds", plan.seeds, 1), ("--rows", plan.rows, 0)):
        if value < least:
            raise ConfigError(f"{option} takes at least {least}; got {value}")


def _some(test: Examples, rows: int) -> Examples:
    """At most ``rows`` of the test rows, the same for all seeds; all of them for 0."""
    if not 0 < rows < len(test):
        return test
    return test.rows(np.sort(stream(0, "test-rows").permutation(len(test))[:rows]))


# --- words -------------------------------------------------------------------------------------------


def _nodes_table(result: Result) -> list[str]:
    """For each seed and node its rows, its own accuracy and its mean weights."""
    head = ["seed", "node", "rows", "alone", *WEIGHTINGS]
    lines = [_row(head), _row(["---"] * len(head))]
    for trial in result.trials:
        for i, rows in enumerate(trial.examples):
            weights = [_number(trial.weights[weighting][i], 3) for weighting in WEIGHTINGS]
            lines.append(
                _row([str(trial.seed), f"site-{i + 1}", f"{rows:,}", _number(trial.alone[i], 3), *weights])
            )
    return lines


def _shown(plan: Plan) -> dict[str, Value]:
    config = _config(plan, 0, WEIGHTINGS[0], plan.nodes).as_dict()
    always = ("model", "algorithm", "filter", "local-epochs", "batch-size", "learning-rate")
    return {key: config[key] for key in (*always, *(k for k in plan.settings if k not in always))}


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
