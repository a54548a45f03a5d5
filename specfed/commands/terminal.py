"""How commands speak to a person: tables, paths, data, and mistakes in the format of the log."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from common.errors import SpecfedError
from specfed.logs import Log

if TYPE_CHECKING:
    from rich.table import Table

    from specfed.cluster import Shares

WIDE = 200  # characters of a table's line that goes to no terminal: names and keys stay whole


def print_table(table: "Table") -> None:
    """Print it as wide as the terminal is, or else with whole lines. What is too long goes on below."""
    from rich.console import Console

    for column in table.columns:
        column.overflow = "fold"  # a key that is cut cannot be compared
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDE).print(table)


def near(path: Path) -> str:
    """The path from here if it lies below, else the whole of it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def dealt(data: str, shares: "Shares") -> str:
    """How data were dealt out to nodes."""
    first, last = shares.nodes[0].name, shares.nodes[-1].name
    line = f"data    {data}: {shares.train:,} train / {shares.test:,} test, {shares.how} over {first}..{last}"
    if not shares.free_rider:
        return line
    return f"{line}; {shares.free_rider} is a free-rider (10 samples, repeated)"


@contextmanager
def told(log: Log) -> Iterator[None]:
    """Let a mistake be said in the format of the log."""
    try:
        yield
    except SpecfedError as error:
        if not log.json:
            raise
        log.error(str(error))
        raise typer.Exit(error.exit_code) from None
