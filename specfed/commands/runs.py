"""``specfed run``, ``status``, ``watch`` and ``stop``: runs on a server, from its machine or another one."""

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.errors import ConfigError, SpecfedError
from specfed import __version__
from specfed.commands.options import (
    Arguments,
    ControlAddress,
    Insecure,
    ServerConfig,
    TlsCa,
    reach,
    run_folders,
)
from specfed.commands.terminal import print_table
from specfed.settings import read_run

if TYPE_CHECKING:
    from specfed.launcher.runs import Control, RunStatus

Run = Annotated[
    str, typer.Argument(help="A run's mark, such as 7f3a, the name of the folder it began, or Flower's id.")
]
Latest = Annotated[str, typer.Argument(help="As for 'specfed stop'; the latest run, if not given.")]


def run(
    arguments: Arguments = None,
    config: ServerConfig = None,
    server: ControlAddress = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the run and leave.")] = False,
    insecure: Insecure = None,
    tls_ca: TlsCa = None,
) -> None:
    """Start a training run on a server and watch it. Ctrl-C stops it."""
    from specfed import cluster
    from specfed.launcher import app_files, runs

    chosen = read_run(arguments or (), runs=run_folders(config))
    address, ca = reach(config, server, insecure, tls_ca)
    with cluster.scratch() as folder:
        control = runs.Control(address, ca, folder / "control")
        started = runs.submit(control, app_files.stage_app(folder / "app"), chosen.as_dict())
        mark = runs.mark_of(started)
        print(f"specfed {__version__} · run {mark} on {address} · id {started}", flush=True)
        if detach:
            print(f"it goes on by itself: 'specfed watch {mark}' shows it, 'specfed stop {mark}' ends it")
            return
        try:
            code = _shown(control, started)
        except BaseException:
            print(f"stopping run {mark}", file=sys.stderr)
            try:
                runs.stop_run(control, started)
            except SpecfedError as error:  # why the watching ended comes first
                print(f"run {mark} was not stopped: {error}", file=sys.stderr)
            raise
    raise typer.Exit(code)


def status(
    config: ServerConfig = None,
    server: ControlAddress = None,
    insecure: Insecure = None,
    tls_ca: TlsCa = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the latest ones.")] = 20,
) -> None:
    """List the runs that a running server knows, the latest first."""
    from rich.table import Table

    from specfed import cluster
    from specfed.launcher import runs
    from specfed.live import duration

    address, ca = reach(config, server, insecure, tls_ca)
    with cluster.scratch() as folder:
        known = runs.statuses(runs.Control(address, ca, folder / "control"), limit)
    if not known:
        print(f"no run yet on {address}")
        return
    table = Table("run", "state", "asked for", "took", "folder", box=None, pad_edge=False)
    folders = run_folders(config)
    for one in known:
        table.add_row(one.mark, one.word, one.asked, duration(one.seconds), _folder(folders, one))
    print_table(table)


def watch(
    run: Latest = "",
    config: ServerConfig = None,
    server: ControlAddress = None,
    insecure: Insecure = None,
    tls_ca: TlsCa = None,
) -> None:
    """Show a run from its first round, while it goes on or after it. Ctrl-C leaves, and the run goes on."""
    from specfed import cluster
    from specfed.launcher import runs

    address, ca = reach(config, server, insecure, tls_ca)
    with cluster.scratch() as folder:
        control = runs.Control(address, ca, folder / "control")
        found = runs.find(control, run)
        print(f"specfed {__version__} · run {found.mark} on {address} · {found.word}", flush=True)
        try:
            code = _shown(control, found.id)
        except KeyboardInterrupt:
            print(f"run {found.mark} goes on: 'specfed stop {found.mark}' ends it", file=sys.stderr)
            raise
    raise typer.Exit(code)


def stop(
    run: Run,
    config: ServerConfig = None,
    server: ControlAddress = None,
    insecure: Insecure = None,
    tls_ca: TlsCa = None,
) -> None:
    """End a run after what it has done: its folder keeps all rounds so far, and 'resume=' goes on with it."""
    from specfed import cluster
    from specfed.launcher import runs

    if not run:  # such as a shell's variable that is not set: it must not end whatever is going on
        raise ConfigError("RUN is empty; name the run to end: 'specfed status' lists them")
    address, ca = reach(config, server, insecure, tls_ca)
    with cluster.scratch() as folder:
        control = runs.Control(address, ca, folder / "control")
        found = runs.find(control, run)
        if found.finished:
            print(f"run {found.mark} has ended already: {found.word}")
            if run not in (found.mark, found.id):
                print("a run that goes on in its folder has a mark of its own: 'specfed status' lists it")
            return
        runs.stop_run(control, found.id)
        print(f"run {found.mark}: {runs.status(control, found.id).word}")


def _shown(control: "Control", run: str) -> int:
    """Show a run to its end; its exit code."""
    from specfed.launcher import runs
    from specfed.live import records_in
    from specfed.watch import exit_code, show

    end = show(records_in(runs.log_lines(control, run)))
    if end is None:
        how = runs.status(control, run)
        if how.word == "stopped":  # its last line comes too late for the server's log
            print(f"run {how.mark} was stopped")
            return 128 + signal.SIGINT
    return exit_code(end, lambda: runs.status(control, run).details)


def _folder(runs: Path, one: "RunStatus") -> str:
    """The name of a run's folder, if it is on this machine; ``-`` also for a run that goes on with an earlier
    one, in that one's folder."""
    found = sorted(runs.glob(f"*-{one.mark}"))
    return found[-1].name if found else "-"
