"""The process that stands around one of Flower's: ``python -m specfed.launcher.supervisor ROLE ARGS...``.

Flower's SuperLink and SuperNode start further processes, which outlive them in several ways. This one
forks Flower's process, adopts whatever it leaves behind, and ends only when nothing of it runs any more.
It ends itself when the process that started it is gone, even by ``kill -9``. Started once for each server
and node, it imports next to nothing before the fork.
"""

import ctypes
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from common.patience import ask_soon
from common.text import visible
from specfed.launcher import naps, warm

PARENT = "SPECFED_PARENT"  # environment variable: pid of the process that must be there

REQUESTS = "uvicorn.access"  # the log of HTTP servers, a line a request
LOCK_SECONDS = 60  # that the server's database waits for a slow disk; Flower's 5 end a large round
LOST = 75  # exit code of a node that an error of the server has thrown out of its loop

STOP_SECONDS = 3.0  # for Flower's process, from SIGTERM to SIGKILL
# Then for the app processes it leaves: a run closes its files, a node's work is lost anyway.
SWEEP_SECONDS = {"superlink": 3.0, "supernode": 0.5, "flwr": 0.0, "warm": 0.5}

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Run Flower's ``superlink``, ``supernode`` or command line (``flwr``), and clean up after it."""
    role, *arguments = sys.argv[1:]
    run = {"superlink": _superlink, "supernode": _node, "flwr": _command_line, "warm": _warm}[role]
    _die_with(int(os.environ.get(PARENT, os.getppid())))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        _die_with(supervisor)
        sys.argv = [role if role == "flwr" else f"flower-{role}", *arguments]
        run()
        return 0
    return _supervise(child, SWEEP_SECONDS[role])


def _node() -> None:
    """A SuperNode to its end, also where its loop is over, as an error of the server's makes it.

    Flower logs that and returns, and its HTTP server, which nobody stops, would keep the process for ever.
    """
    _supernode()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(LOST)


def _superlink() -> None:
    from flwr.superlink.cli import flower_superlink

    naps.patch_http()
    _log_visibly()
    _refuse_other_versions()
    _wait_for_the_disk()
    flower_superlink()


def _refuse_other_versions() -> None:
    """Let the server in this process refuse nodes of another Flower, whom Flower itself only warns."""
    module: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    name = "create_fleet_runtime_version_server_interceptor"
    setattr(module, name, partial(getattr(module, name), reject_incompatible=True))


def _wait_for_the_disk() -> None:
    """Let the server's database wait longer for a lock: neither nodes nor runs get over a call that fails."""
    module: Any = importlib.import_module("flwr.supercore.sql_mixin")
    name = "SQLITE_PRAGMAS"
    setattr(module, name, (*getattr(module, name, ()), ("busy_timeout", str(1000 * LOCK_SECONDS))))


def _supernode() -> None:
    from flwr.supernode.cli import flower_supernode

    if not (naps.patch_node() and ask_soon()):
        logging.getLogger("flwr").warning("specfed knows no shorter polling for this Flower")
    _log_visibly()
    threading.excepthook = _in_a_line
    _leave_in_peace("flwr.supernode.start_client_internal")
    flower_supernode()


def _log_visibly() -> None:
    """Make each message one visible line: Flower quotes what the other end sent, such as an app's hash, and
    that must neither look like a line of ours nor move the operator's terminal."""
    make = logging.getLogRecordFactory()

    def visibly(*arguments: Any, **more: Any) -> logging.LogRecord:
        record = make(*arguments, **more)
        if record.name != REQUESTS:  # whose arguments Flower's filter reads; a path is quoted in them
            record.msg, record.args = visible(record.getMessage()), ()
        return record

    logging.setLogRecordFactory(visibly)


def _leave_in_peace(place: str) -> None:
    """Let no second SIGTERM kill the process in this module of Flower while it leaves after the first.

    systemd sends one to each process of a unit, and we hand ours on. Flower goes back to what SIGTERM did
    before; a node killed so has not taken its leave, and the server refuses it for the next minute.
    """
    module: Any = importlib.import_module(place)
    register = module.register_signal_handlers

    def registered(*arguments: Any, **more: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        register(*arguments, **more)

    module.register_signal_handlers = registered


def _in_a_line(error: threading.ExceptHookArgs) -> None:
    """Log an RPC that failed in a thread of its own, such as the heartbeat of a node that was just revoked.

    Flower lets it end in a traceback; the main thread meets the same refusal, and ends with a sentence.
    """
    import grpc

    if isinstance(error.exc_value, grpc.RpcError) and isinstance(error.exc_value, grpc.Call):
        status = f"{error.exc_value.code().name}: {error.exc_value.details()}"
        logging.getLogger("flwr").error("a call to the server failed: %s", status)
    else:
        threading.__excepthook__(error)


def _command_line() -> None:
    from flwr.cli.app import app

    app()


def _warm() -> None:
    warm.serve(Path(sys.argv[1]))


def _supervise(child: int, sweep_seconds: float) -> int:
    """Wait for Flower's process, then for all that it started; its exit code."""
    signal.signal(signal.SIGALRM, _sender(child, signal.SIGKILL))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _sender(child, signal.SIGTERM, then_kill=True))
    status = _reap(child)
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _sweep(time.monotonic() + sweep_seconds)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _sender(
    pid: int, number: signal.Signals, then_kill: bool = False
) -> Callable[[int, FrameType | None], None]:
    def send(_number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):  # it has just been buried
            os.kill(pid, number)
        if then_kill:
            signal.setitimer(signal.ITIMER_REAL, STOP_SECONDS)

    return send


def _reap(child: int) -> int:
    """Wait until ``child`` ends, burying adopted orphans meanwhile; its wait status."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return status


def _sweep(deadline: float) -> None:
    """Bury all remaining descendants. Those still there at the deadline are killed.

    Flower's app processes watch the pid of the one that started them. As orphans are buried here, that
    pid vanishes and they end by themselves, the server's after it has closed its files.
    """
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            if time.monotonic() > deadline:
                _kill_children()
            time.sleep(0.05)


def _kill_children() -> None:
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdigit() and _parent_of(entry) == os.getpid():
            os.kill(int(entry), signal.SIGKILL)


def _parent_of(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:  # it has just ended
        return 0


def _die_with(parent: int) -> None:
    """Get SIGTERM when ``parent`` ends, however it ends (Linux only)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it was gone before the request
        sys.exit(128 + signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
