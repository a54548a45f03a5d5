"""``specfed lab``: experiments in one process."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from common.config import Value
from specfed import __version__
from specfed.commands.options import (
    Alpha,
    Arguments,
    Data,
    FreeRider,
    Nodes,
    Overrides,
    Partition,
    Runs,
    run_folder,
)
from specfed.commands.terminal import dealt, near
from specfed.settings import parse_overrides, read_run

app = typer.Typer(help="Experiments in one process: the same apps, no network.")
reproduce = typer.Typer(help="Experiments of papers, with a table of what came out.")
app.add_typer(reproduce, name="reproduce", no_args_is_help=True)

Rounds = Annotated[int, typer.Option(help="Rounds of each run.")]
Seeds = Annotated[int, typer.Option(help="Repetitions, with a split and a start each.")]
Rows = Annotated[
    int, typer.Option(help="Random training rows to use, and at most so many test rows; 0 uses all.")
]
Say = Callable[[str], None]


@app.command("run")
def run(
    arguments: Arguments = None,
    data: Data = "digits",
    nodes: Nodes = 5,
    partition: Partition = "dirichlet",
    alpha: Alpha = 0.3,
    with_free_rider: FreeRider = False,
    runs: Runs = Path("runs"),
) -> None:
    """A run in this process, its nodes one after the other."""
    from specfed import cluster
    from specfed import lab as laboratory
    from specfed.deployment import writable
    from specfed.watch import exit_code, show

    defaults: dict[str, Value] = {
        "run-name": "lab",
        "threads": 1,
        "eval-data": data,
        "min-nodes": max(1, nodes),
    }
    config = read_run(arguments or (), defaults, runs)
    with cluster.scratch() as folder:
        shares = cluster.deal(data, nodes, partition, alpha, config.seed, with_free_rider, folder)
        cluster.require_nodes(config, shares)
        cluster.try_model(config, shares)
        print(f"specfed {__version__} · lab · {nodes} nodes in this process")
        print(dealt(data, shares), flush=True)
        code = exit_code(
            show(laboratory.run(config, shares.nodes, writable(runs, "--runs"))), lambda: "no end line"
        )
    raise typer.Exit(code)


@app.command("sweep")
def compare(
    overrides: Overrides = None,
    over: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE,VALUE", help="Values of a key to compare.")
    ] = None,
    data: Data = "digits",
    nodes: Nodes = 5,
    partition: Partition = "dirichlet",
    alpha: Alpha = 0.3,
    rounds: Rounds = 10,
    seeds: Seeds = 3,
    rows: Rows = 0,
    runs: Runs = Path("runs"),
) -> None:
    """All combinations of some keys' values, over several seeds, the first one as the base."""
    from specfed.experiments.plan import Plan
    from specfed.experiments.sweep import as_markdown, parse_axes, sweep

    plan = Plan(data, nodes, alpha, rounds, seeds, rows, parse_overrides(overrides or ()), partition)
    axes = parse_axes(over or ())
    _experiment("sweep", seeds, runs, lambda folder, say: as_markdown(sweep(plan, axes, folder, say)))


@reproduce.command("contribution-correlation")
def correlation(
    overrides: Overrides = None,
    data: Data = "digits",
    nodes: Nodes = 5,
    partition: Partition = "dirichlet",
    alpha: Alpha = 0.1,
    rounds: Rounds = 10,
    seeds: Seeds = 3,
    rows: Rows = 0,
    runs: Runs = Path("runs"),
) -> None:
    """Do weights follow what nodes are worth? Correlates them with the accuracy of each node alone."""
    from specfed.experiments.correlation import as_markdown, contribution_correlation
    from specfed.experiments.plan import Plan

    plan = Plan(data, nodes, alpha, rounds, seeds, rows, parse_overrides(overrides or ()), partition)
    _experiment(
        "contribution-correlation",
        seeds,
        runs,
        lambda folder, say: as_markdown(contribution_correlation(plan, folder, say)),
    )


@reproduce.command()
def drift(
    overrides: Overrides = None,
    data: Data = "digits",
    nodes: Nodes = 20,
    partition: Partition = "dirichlet",
    alpha: Alpha = 0.1,
    filters: Annotated[str, typer.Option(help="Filters to compare, the first one as the base.")] = "none,fft",
    rounds: Rounds = 20,
    seeds: Seeds = 3,
    rows: Rows = 0,
    runs: Runs = Path("runs"),
) -> None:
    """Does filtering gradients help where nodes' data differ? Pairs of runs with and without."""
    from specfed.experiments.plan import Plan
    from specfed.experiments.sweep import DRIFT, as_markdown, sweep

    plan = Plan(data, nodes, alpha, rounds, seeds, rows, parse_overrides(overrides or ()), partition)
    axes = {"filter": filters.split(",")}
    _experiment("drift", seeds, runs, lambda folder, say: as_markdown(sweep(plan, axes, folder, say, DRIFT)))


@reproduce.command()
def attacks(
    overrides: Overrides = None,
    data: Data = "digits",
    nodes: Nodes = 5,
    partition: Partition = "dirichlet",
    alpha: Alpha = 0.3,
    rounds: Rounds = 10,
    seeds: Seeds = 2,
    rows: Rows = 0,
    runs: Runs = Path("runs"),
) -> None:
    """What does a node get for sending noise, copies or old news, and do the guards see it?"""
    from specfed.experiments.attacks import as_markdown
    from specfed.experiments.attacks import attacks as attack
    from specfed.experiments.plan import Plan

    plan = Plan(data, nodes, alpha, rounds, seeds, rows, parse_overrides(overrides or ()), partition)
    _experiment("attacks", seeds, runs, lambda folder, say: as_markdown(attack(plan, folder, say)))


def _experiment(name: str, seeds: int, runs: Path, measure: Callable[[Path, Say], str]) -> None:
    """Print what an experiment says, and the table that it returns; its files go to a new folder."""
    from specfed.deployment import writable

    folder = run_folder(writable(runs, "--runs"), name)
    print(f"specfed {__version__} · lab · {name} · {seeds} seeds, {near(folder)}", flush=True)
    table = measure(folder, lambda line: print(line, flush=True))
    print(f"\n{table}\n{near(folder / 'result.md')}")
