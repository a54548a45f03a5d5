"""Experiments in one process: the apps of a deployment on a local grid, no network and no Ray."""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from common.config import NodeConfig, RunConfig
from common.ledger import Record
from server_app.folder import RUNS
from specfed.live import record_of

if TYPE_CHECKING:
    from specfed.local_grid import Answer

Around = Callable[["Answer"], "Answer"]


def run(
    config: RunConfig, nodes: Sequence[NodeConfig], runs: Path, around: Around = lambda app: app
) -> Iterator[Record]:
    """Carry out a run in this process; its ledger's records as they come.

    The run folder goes into ``runs``. ``around`` may put something around the nodes' app. Raises the
    SpecfedError that ended the run, after its last record.
    """
    from client_app.app import app as client_app
    from server_app.app import app as server_app
    from specfed.local_grid import run_locally

    os.environ[RUNS] = str(runs.resolve())
    records: SimpleQueue[Record | None] = SimpleQueue()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with _ledger_lines_to(records):
                run_locally(server_app, around(client_app), config, nodes)
        except BaseException as error:  # handed to the thread that waits
            errors.append(error)
        records.put(None)

    # A daemon, so that Ctrl-C in the waiting thread ends the process and the run with it.
    threading.Thread(target=work, daemon=True).start()
    while (record := records.get()) is not None:
        yield record
    if errors:
        raise errors[0]


@contextmanager
def _ledger_lines_to(records: "SimpleQueue[Record | None]") -> Iterator[None]:
    """Take the ledger's lines out of Flower's log, and keep the rest of it off the screen."""
    log = logging.getLogger("flwr")
    before, log.handlers = log.handlers, [_Ledger(records)]
    try:
        yield
    finally:
        log.handlers = before


class _Ledger(logging.Handler):
    def __init__(self, records: "SimpleQueue[Record | None]") -> None:
        super().__init__(logging.INFO)
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        told = record_of(record.getMessage())
        if told is not None:
            self._records.put(told)
