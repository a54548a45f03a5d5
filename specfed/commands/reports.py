"""``specfed report`` and ``explain``: what a run has left, for people."""

import os
from pathlib import Path
from typing import Annotated

import typer

from common.errors import DataError
from specfed.commands.options import Runs

RunFolder = Annotated[str, typer.Argument(help="A run folder, or its name under --runs.")]


def report(
    run: RunFolder,
    site: Annotated[
        str, typer.Option(help="What this site may see: its own rows, and what all share. Not given: all.")
    ] = "",
    runs: Runs = Path("runs"),
) -> None:
    """Write a run's report again from its ledger: HTML, CSV and JSON."""
    from server_app.report.writing import write_report

    print(write_report(_run_folder(run, runs), site))


def explain(
    run: RunFolder,
    number: Annotated[int | None, typer.Option("--round", help="The last one, if not given.")] = None,
    client: Annotated[str, typer.Option(help="A node's name; all of them, if not given.")] = "",
    runs: Runs = Path("runs"),
) -> None:
    """Say why nodes got the weight they got in a round of a run."""
    from common.ledger import LEDGER, read
    from server_app.report.explanation import explain as lines
    from server_app.report.run_view import view

    for line in lines(view(read(_run_folder(run, runs) / LEDGER)), number, client):
        print(line)


def _run_folder(run: str, runs: Path) -> Path:
    folder = next((path for path in (Path(run), runs / run) if os.path.isdir(path)), None)
    if folder is None:
        raise DataError(f'no run folder "{run}" here or in {runs}')
    return folder.resolve()
