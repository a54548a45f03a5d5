"""What experiments share: a plan, runs of it, and tables."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from common.config import NodeConfig, RunConfig, Value
from common.datasets import Examples
from common.errors import ConfigError
from common.ledger import Header, Record
from common.partition import in_words
from common.seeding import stream
from common.text import to_json
from specfed import cluster, lab
from specfed.settings import checked

OWN_KEYS = ("run-name", "seed", "rounds", "resume", "contribution", "eval-data", "min-nodes")
DEFAULTS: Mapping[str, Value] = {"threads": 1, "tensorboard": False, "keep-checkpoints": 1}

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """An experiment. ``settings`` are the keys of a run that differ from ``DEFAULTS`` and a run's own."""

    data: str
    nodes: int
    alpha: float  # of a Dirichlet split
    rounds: int
    seeds: int  # 0, 1, ...: each one a subset, a split and an initialisation
    rows: int  # random training rows that are used, and at most so many test rows; 0 uses all
    settings: Mapping[str, Value]
    partition: str = "dirichlet"  # one of ``common.partition.KINDS``

    @property
    def split(self) -> str:
        """How rows are dealt out, in words."""
        return in_words(self.partition, self.alpha)

    def check(self, own: Iterable[str]) -> None:
        """Raise ConfigError for settings that the experiment, whose own keys these are, does not take."""
        require_free(self.settings, (*OWN_KEYS, *own))
        for option, value, least in (("--seeds", self.seeds, 1), ("--rows", self.rows, 0)):
            if value < least:
                raise ConfigError(f"{option} takes at least {least}; got {value}")

    def config(self, seed: int, name: str, usual: Mapping[str, Value], own: Mapping[str, Value]) -> RunConfig:
        """One run's configuration: ``usual`` can be changed by the settings, ``own`` cannot."""
        run: dict[str, Value] = {"run-name": f"seed{seed}-{name}", "seed": seed, "rounds": self.rounds}
        return checked({**DEFAULTS, **usual, **self.settings, **run, **own}, {})


def require_free(keys: Iterable[str], own: Iterable[str] = OWN_KEYS) -> None:
    """Raise ConfigError if one of the ``keys`` is among those that an experiment sets itself."""
    taken = set(own)
    for key in keys:
        if key in taken:
            raise ConfigError(f'"{key}" is what the experiment itself sets; its options are in --help')


def dealt(plan: Plan, configs: Sequence[RunConfig], scratch: Path) -> Iterator[tuple[int, cluster.Shares]]:
    """Each seed with its data, split anew; the nodes keep no rows to test on.

    Row numbers go to ``scratch``. Raises SpecfedError for data that cannot be split so, and if the model of
    one of ``configs`` does not fit them.
    """
    for seed in range(plan.seeds):
        rows = scratch / f"seed-{seed}"
        shares = cluster.deal(
            plan.data, plan.nodes, plan.partition, plan.alpha, seed, False, rows, rows=plan.rows
        )
        for config in configs:
            cluster.try_model(config, shares)
        nodes = tuple(node.model_copy(update={"validation": 0.0}) for node in shares.nodes)
        yield seed, replace(shares, nodes=nodes)


def run_and_test(
    config: RunConfig,
    nodes: Sequence[NodeConfig],
    folder: Path,
    test: Examples,
    around: lab.Around = lambda app: app,
) -> tuple[list[Record], float]:
    """One run's records, and the test accuracy of its last model, 0..1. ``around``: as for ``lab.run``."""
    from common import models
    from common.checkpoint import load_arrays
    from common.devices import resolve
    from common.evaluation import evaluate
    from common.params import carried, load_into, trainable

    records = list(lab.run(config, nodes, folder, around))
    (header,) = (record for record in records if isinstance(record, Header))
    model = models.build(config.model, test.input_shape, test.classes, config.seed)
    arrays = load_arrays(Path(header.folder) / "model.safetensors")
    load_into(trainable(model) | carried(model), arrays)
    device = resolve(config.device)
    return records, evaluate(model.to(device), test, device).accuracy


def some_rows(test: Examples, rows: int) -> Examples:
    """At most ``rows`` of the test rows, the same for all seeds; all of them for 0."""
    if not 0 < rows < len(test):
        return test
    return test.rows(np.sort(stream(0, "test-rows").permutation(len(test))[:rows]))


def save(folder: Path, result: Mapping[str, object], table: str) -> None:
    """Write ``result.json`` and ``result.md`` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(to_json(result), encoding="utf-8")
    (folder / "result.md").write_text(table, encoding="utf-8")


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of those values that are there; None if none is."""
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def shown(config: RunConfig, plan: Plan) -> dict[str, Value]:
    """The keys of a run that a reader of its table wants to know."""
    every = config.as_dict()
    always = ("model", "algorithm", "filter", "local-epochs", "batch-size", "learning-rate")
    return {key: every[key] for key in (*always, *(k for k in plan.settings if k not in always))}


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def number(value: float | None, digits: int) -> str:
    """A number for a table; a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"
