"""The command line. A user's mistake ends in one sentence and an exit code of ``common.errors``."""

import os
import secrets
import shutil
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import click
import typer

from common.config import RunConfig, Value
from common.errors import ConfigError, DataError, SpecfedError
from specfed import __version__, cli_certs, cli_deploy, cli_doctor
from specfed.cli_deploy import ControlAddress, Insecure, ServerConfig, TlsCa, python_path, reach
from specfed.settings import checked, parse_overrides, read_run

if TYPE_CHECKING:
    from specfed.cluster import Federation, Shares

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click already does
    help="Federated learning with spectral gradient filters and data-free contribution scores.",
)

lab = typer.Typer(help="Experiments in one process: the same apps, no network.")
app.add_typer(lab, name="lab", no_args_is_help=True)
app.add_typer(cli_certs.app, name="certs", no_args_is_help=True)
app.add_typer(cli_doctor.app, name="doctor")
reproduce = typer.Typer(help="Experiments of papers, with a table of what came out.")
lab.add_typer(reproduce, name="reproduce", no_args_is_help=True)

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Any key of 'specfed config'.")
]
Data = Annotated[str, typer.Option(help="Data that are split over the nodes.")]
Nodes = Annotated[int, typer.Option(help="Number of nodes, at least 2.")]
Partition = Annotated[str, typer.Option(help="How data are split: dirichlet or iid.")]
Alpha = Annotated[float, typer.Option(help="Dirichlet: the smaller, the more the nodes differ.")]
FreeRider = Annotated[
    bool, typer.Option("--free-rider/--no-free-rider", help="Whether the last of 3 or more nodes is one.")
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[EXPERIMENT.toml] [KEY=VALUE]...", help="Keys of 'specfed config'."),
]
Runs = Annotated[Path, typer.Option(help="Folder that the run folders go to.")]


def main() -> NoReturn:
    """Run one command and leave with its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.path.append(os.getcwd())  # for data and models of the user's own, module:function
    try:
        code = app(standalone_mode=False)
    except click.exceptions.Abort:
        _leave("interrupted", 128 + signal.SIGINT)
    except click.ClickException as error:
        _leave(f"error: {error.format_message()}", error.exit_code)
    except SpecfedError as error:
        _leave(f"error: {error}", error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough to clean up
    sys.exit(128 + signal.SIGTERM)


def _leave(text: str, code: int) -> NoReturn:
    print(" ".join(text.split()), file=sys.stderr)
    sys.exit(code)


@app.callback(invoke_without_command=True)
def _no_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"specfed {__version__}")
        raise typer.Exit()
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def demo(
    overrides: Overrides = None,
    data: Data = "digits",
    model: Annotated[str, typer.Option(help="Model to train.")] = "cnn5",
    nodes: Nodes = 5,
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 10,
    partition: Partition = "dirichlet",
    alpha: Alpha = 0.3,
    weighting: Annotated[str, typer.Option(help="How updates are weighed.")] = "spectralfuse",
    filter: Annotated[str, typer.Option(help="Filter on local gradients.")] = "fft",
    seed: Annotated[int, typer.Option(help="Of the split and of the training.")] = 0,
    with_free_rider: FreeRider = True,
    threads: Annotated[int, typer.Option(help="CPU threads of a training process.")] = 1,
    runs: Runs = Path("runs"),
) -> None:
    """A whole federation on this machine: server and nodes as real processes, with a report."""
    from specfed import cluster

    chosen: dict[str, Value] = {
        "run-name": "demo",
        "model": model,
        "rounds": rounds,
        "weighting": weighting,
        "filter": filter,
        "seed": seed,
        "threads": threads,
        "eval-data": data,
        "min-nodes": max(1, nodes),
        "min-replies": max(1, nodes // 2),
        **parse_overrides(overrides or ()),
    }
    config = checked(chosen, {})
    with cluster.scratch() as folder:
        shares = cluster.deal(data, nodes, partition, alpha, config.seed, with_free_rider, folder / "rows")
        cluster.try_model(config, shares)
        run_folder = runs.resolve() / _run_id(config.run_name)
        threading = {"OMP_NUM_THREADS": str(config.threads)} if config.threads else {}
        environment = {"SPECFED_RUNS": str(run_folder.parent), "SPECFED_RUN_ID": run_folder.name, **threading}
        try:
            with cluster.federation(shares.nodes, folder, environment, python_path() | threading) as fed:
                print(
                    f"specfed {__version__} · demo · 1 server + {nodes} nodes on this machine, "
                    f"gRPC on {fed.server.fleet}, {_near(run_folder)}"
                )
                print(_dealt(data, shares, partition, alpha), flush=True)
                code = _demo_run(fed, config, run_folder)
        finally:
            if run_folder.is_dir():
                shutil.copytree(folder / "logs", run_folder / "logs", dirs_exist_ok=True)
    raise typer.Exit(code)


for command in (cli_deploy.server, cli_deploy.node, cli_deploy.enroll, cli_deploy.revoke, cli_deploy.nodes):
    app.command()(command)


@app.command()
def run(
    arguments: Arguments = None,
    config: ServerConfig = None,
    server: ControlAddress = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the run and leave.")] = False,
    insecure: Insecure = None,
    tls_ca: TlsCa = None,
) -> None:
    """Start a training run on a server and watch it. Ctrl-C stops it."""
    from specfed import cluster, launcher
    from specfed.live import records_in
    from specfed.watch import exit_code, show

    chosen = read_run(arguments or ())
    address, ca = reach(config, server, insecure, tls_ca)
    with cluster.scratch() as folder:
        control = launcher.Control(address, ca, folder / "control")
        flower_run = launcher.submit(control, launcher.stage_app(folder / "app"), chosen.as_dict())
        print(f"specfed {__version__} · run {flower_run} on {address}", flush=True)
        if detach:
            return
        try:
            end = show(records_in(launcher.log_lines(control, flower_run)))
        except BaseException:
            print(f"stopping run {flower_run}", file=sys.stderr)
            launcher.stop_run(control, flower_run)
            raise
        code = exit_code(end, lambda: launcher.status(control, flower_run).details)
    raise typer.Exit(code)


@lab.command("run")
def lab_run(
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
    config = read_run(arguments or (), defaults)
    with cluster.scratch() as folder:
        shares = cluster.deal(data, nodes, partition, alpha, config.seed, with_free_rider, folder)
        cluster.try_model(config, shares)
        print(f"specfed {__version__} · lab · {nodes} nodes in this process")
        print(_dealt(data, shares, partition, alpha), flush=True)
        code = exit_code(
            show(laboratory.run(config, shares.nodes, writable(runs, "--runs"))), lambda: "no end line"
        )
    raise typer.Exit(code)


@reproduce.command("contribution-correlation")
def lab_contribution_correlation(
    overrides: Overrides = None,
    data: Data = "digits",
    nodes: Nodes = 5,
    alpha: Alpha = 0.1,
    rounds: Annotated[int, typer.Option(help="Rounds of each run.")] = 10,
    seeds: Annotated[int, typer.Option(help="Repetitions, with a split and a start each.")] = 3,
    rows: Annotated[
        int, typer.Option(help="Random training rows to use, and at most so many test rows; 0 uses all.")
    ] = 0,
    runs: Runs = Path("runs"),
) -> None:
    """Do weights follow what nodes are worth? Correlates them with the accuracy of each node alone."""
    from specfed.deployment import writable
    from specfed.experiments.correlation import as_markdown, contribution_correlation
    from specfed.experiments.plan import Plan

    plan = Plan(data, nodes, alpha, rounds, seeds, rows, parse_overrides(overrides or ()))
    folder = writable(runs, "--runs") / _run_id("contribution-correlation")
    print(
        f"specfed {__version__} · lab · contribution-correlation · {seeds} seeds, {_near(folder)}", flush=True
    )
    result = contribution_correlation(plan, folder, lambda line: print(line, flush=True))
    print(f"\n{as_markdown(result)}\n{_near(folder / 'result.md')}")


@reproduce.command("drift")
def lab_drift(
    overrides: Overrides = None,
    data: Data = "digits",
    nodes: Nodes = 20,
    alpha: Alpha = 0.1,
    filters: Annotated[str, typer.Option(help="Filters to compare, the first one as the base.")] = "none,fft",
    rounds: Annotated[int, typer.Option(help="Rounds of each run.")] = 20,
    seeds: Annotated[int, typer.Option(help="Repetitions, with a split and a start each.")] = 3,
    rows: Annotated[
        int, typer.Option(help="Random training rows to use, and at most so many test rows; 0 uses all.")
    ] = 0,
    runs: Runs = Path("runs"),
) -> None:
    """Does filtering gradients help where nodes' data differ? Pairs of runs with and without."""
    from specfed.deployment import writable
    from specfed.experiments.drift import as_markdown, drift
    from specfed.experiments.plan import Plan

    plan = Plan(data, nodes, alpha, rounds, seeds, rows, parse_overrides(overrides or ()))
    folder = writable(runs, "--runs") / _run_id("drift")
    print(f"specfed {__version__} · lab · drift · {seeds} seeds, {_near(folder)}", flush=True)
    result = drift(plan, filters.split(","), folder, lambda line: print(line, flush=True))
    print(f"\n{as_markdown(result)}\n{_near(folder / 'result.md')}")


@app.command()
def report(
    run: Annotated[str, typer.Argument(help="A run folder, or its name under --runs.")],
    runs: Runs = Path("runs"),
) -> None:
    """Write a run's report again from its ledger: HTML, CSV and JSON."""
    from server_app.report import write_report

    folder = next((path for path in (Path(run), runs / run) if path.is_dir()), None)
    if folder is None:
        raise DataError(f'no run folder "{run}" here or in {runs}')
    print(write_report(folder.resolve()))


@app.command()
def app_hash() -> None:
    """Print the SHA-256 of the app that this version sends to nodes, for a site's policy."""
    from specfed import cluster, launcher

    with cluster.scratch() as folder:
        print(launcher.app_hash(launcher.stage_app(folder / "app")))


@app.command()
def compose(
    nodes: Nodes = 3,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Write what goes beside the compose file to give each node a GPU.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File to write; the terminal, if not given.")] = None,
) -> None:
    """Write a file for Docker Compose: a server and so many nodes on one machine."""
    from specfed.compose import compose, gpu_overlay

    text = gpu_overlay(nodes) if gpu else compose(nodes)
    if out is None:
        print(text, end="")
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror}") from None


@app.command()
def config() -> None:
    """List all keys of a run with their defaults."""
    from rich.console import Console
    from rich.table import Table

    from specfed.watch import PLAIN_WIDTH

    table = Table("key", "default", "", box=None, pad_edge=False)
    for name, field in RunConfig.model_fields.items():
        default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        table.add_row(name.replace("_", "-"), default or '""', field.description)
    console = Console(highlight=False)
    console.print(table, width=None if console.is_terminal else PLAIN_WIDTH, markup=False)


# --- a federation on this machine --------------------------------------------------------------------


def _demo_run(fed: "Federation", config: RunConfig, run_folder: Path) -> int:
    from specfed.live import follow
    from specfed.watch import exit_code, show

    run = fed.submit(config.as_dict())
    fed.wait_online()
    return exit_code(show(follow(run_folder / "ledger.jsonl", run.finished)), run.details)


def _dealt(data: str, shares: "Shares", partition: str, alpha: float) -> str:
    names = [site.name for site in shares.nodes]
    how = f"Dirichlet({alpha:g})" if partition == "dirichlet" else partition
    line = (
        f"data    {data}: {shares.train:,} train / {shares.test:,} test, {how} over {names[0]}..{names[-1]}"
    )
    if not shares.free_rider:
        return line
    return f"{line}; {shares.free_rider} is a free-rider (10 samples, repeated)"


def _near(path: Path) -> str:
    """The path from here if it lies below, else the whole of it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _run_id(name: str) -> str:
    """``2026-12-01-demo-7f3a``: the day, the name, and a random mark."""
    return f"{datetime.now(UTC):%Y-%m-%d}-{name or 'run'}-{secrets.token_hex(2)}"


if __name__ == "__main__":
    main()
