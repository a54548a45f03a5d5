"""The command line. A user's mistake ends in one sentence and an exit code of ``common.errors``."""

import atexit
import errno
import gc
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import click
import typer

from common.config import RunConfig
from common.errors import ConfigError, SpecfedError
from common.text import kebab
from specfed import __version__
from specfed.addresses import unproxied
from specfed.commands import certificates, demo, doctor, enrolment, init, lab, node, reports, runs, server
from specfed.commands.options import Nodes

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # which any command may meet, wherever it writes

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click already does
    help="Federated learning with spectral gradient filters and data-free contribution scores.",
)

app.add_typer(lab.app, name="lab", no_args_is_help=True)
app.add_typer(certificates.app, name="certs", no_args_is_help=True)
app.add_typer(doctor.app, name="doctor")


def main() -> NoReturn:
    """Run one command and leave with its exit code."""
    # PyTorch has 180,000 objects, through which Python would look for garbage before it leaves.
    atexit.register(gc.freeze)
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup leaves it
        signal.signal(signal.SIGHUP, _terminate)
    os.environ.update(unproxied(os.environ))  # for what this process dials itself
    try:
        sys.path.append(os.getcwd())  # for data and models of the user's own, module:function
    except FileNotFoundError:
        _leave("error: the current folder was deleted; change into another one", ConfigError.exit_code)
    try:
        code = app(standalone_mode=False)
    except click.exceptions.Abort:
        _leave("interrupted", 128 + signal.SIGINT)
    except click.ClickException as error:
        _leave(f"error: {error.format_message()}", error.exit_code)
    except SpecfedError as error:
        _leave(f"error: {error}", error.exit_code)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        where = f"{error.filename} cannot be written: " if error.filename else ""
        _leave(f"error: {where}{error.strerror}", ConfigError.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _terminate(number: int, _frame: FrameType | None) -> None:
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # once is enough to clean up
    sys.exit(128 + number)


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


for command in (
    *(demo.demo, server.server, node.node, enrolment.enroll, enrolment.revoke, enrolment.nodes),
    *(runs.run, runs.status, runs.watch, runs.stop, reports.report, reports.explain, init.init),
):
    app.command()(command)


@app.command()
def app_hash() -> None:
    """Print the SHA-256 of the app that this version sends to nodes, for a site's policy."""
    from specfed import cluster
    from specfed.launcher import app_files

    with cluster.scratch() as folder:
        print(app_files.app_hash(app_files.stage_app(folder / "app")))


@app.command()
def compose(
    nodes: Nodes = 3,
    gpu: Annotated[
        bool,
        typer.Option(
            "--gpu", help="Write what goes beside the compose file: site N on GPU N-1, or SPECFED_GPU_N."
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File to write; the terminal, if not given.")] = None,
) -> None:
    """Write a file for Docker Compose: a server and so many nodes on one machine."""
    from common.files import write_whole
    from specfed.compose import compose, gpu_overlay

    text = gpu_overlay(nodes) if gpu else compose(nodes)
    if out is None:
        print(text, end="")
        return
    try:
        if out.exists() and not out.is_file():  # a pipe, or a terminal
            out.write_text(text, encoding="utf-8")
        else:
            write_whole(out.resolve(), text.encode())
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
        table.add_row(kebab(name), default or '""', field.description)
    console = Console(highlight=False)
    console.print(table, width=None if console.is_terminal else PLAIN_WIDTH, markup=False)


if __name__ == "__main__":
    main()
