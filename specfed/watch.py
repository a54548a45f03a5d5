"""A run on the screen, from its records to the exit code."""

import signal
from collections.abc import Callable, Iterable, Iterator

from common.errors import RunFailed, exit_code_for
from common.ledger import End, Record
from specfed.live import tell

PLAIN_WIDTH = 120  # characters of a line that goes to no terminal


def show(records: Iterable[Record]) -> End | None:
    """Print a run while it goes on; its end record, if it comes to one."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    told: list[Record] = []
    for line in tell(_kept(records, told), console.width if console.is_terminal else PLAIN_WIDTH):
        console.print(line)
    return told[-1] if told and isinstance(told[-1], End) else None


def exit_code(end: End | None, details: Callable[[], str]) -> int:
    """What the shell is told. Raises RunFailed for a run that left no end record."""
    if end is None:
        raise RunFailed(f"the run ended without a result: {details()}")
    if end.status == "completed-degraded":
        why = end.reason or "replies were missing or refused on the way"
        print(f"notice: the run was completed, but {why}; see the report")
    failed = exit_code_for(end.error) if end.error else RunFailed.exit_code
    stopped = 128 + signal.SIGINT
    return {"completed": 0, "completed-degraded": 0, "failed": failed, "stopped": stopped}[end.status]


def _kept(records: Iterable[Record], kept: list[Record]) -> Iterator[Record]:
    for record in records:
        kept.append(record)
        yield record
