"""Flower's processes as our children: how they are started, watched and stopped.

Start them from the main thread: Linux ends a child when the thread that started it ends.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from common.errors import ConfigError, PortError, SpecfedError, UnreachableError
from specfed.addresses import unproxied
from specfed.launcher import naps
from specfed.launcher.supervisor import PARENT

STOP_SECONDS = 9.0  # then a process group is killed; longer than the supervisor needs
DRAIN_SECONDS = 2.0

Relay = Callable[[str], None]  # takes a line of a process's output, in a thread of its own

WRAPPER = (sys.executable, "-P", "-m", "specfed.launcher.supervisor")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TELLING = (re.compile(r"already in use|[Ee]rror:|does not"), re.compile(r"\bERROR\b"))  # first ones first
_KINDS: dict[str, type[SpecfedError]] = {
    "in use": PortError,
    "disk is full": ConfigError,  # SQLite's words
    "No space left": ConfigError,
}
_LOG_PREFIX = re.compile(r"^\s*(?:\S+Z )?(?:INFO|WARNING|ERROR|CRITICAL)\s*(?:\[[\w.]+\])?\s*:?\s*")


@dataclass(frozen=True)
class Process:
    """One of Flower's processes with all that it has started."""

    name: str
    popen: "subprocess.Popen[bytes]"
    log: Path | None  # None: it writes to our own terminal
    reader: threading.Thread | None = None  # hands on its output

    def running(self) -> bool:
        """Whether it is still there."""
        return self.popen.poll() is None

    def kill(self) -> None:
        """End it at once and without a goodbye, as a crash would."""
        if self.running():
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def drain(self) -> None:
        """Wait a moment for the last of its output to be handed on, after it has ended."""
        if self.reader is not None:
            self.reader.join(DRAIN_SECONDS)

    def last_words(self) -> str:
        """The last line of its log that says something."""
        self.drain()
        text = "its output says why" if self.log is None else last_line(self.log)
        return text or f"exit code {self.popen.poll()}, and nothing in {self.log}"


def spawn(
    name: str,
    role: str,
    arguments: list[str],
    folder: Path,
    log: Path | None,
    extra: Mapping[str, str],
    relay: Relay | None = None,
) -> Process:
    """Start the supervisor in this role. ``folder`` takes scratch files, ``log`` the output.

    With ``relay`` each line of the output is handed on as well. Without both it goes to our own terminal.
    """
    home = folder / "flower"
    home.mkdir(parents=True, exist_ok=True)
    command = [*WRAPPER, role, *arguments]
    environment = flower_environment(home)
    programs = naps.install(home / "programs")
    environment["PATH"] = os.pathsep.join([str(programs), environment["PATH"]])
    with open_log(log) as output:
        popen = subprocess.Popen(
            command,
            env={**environment, PARENT: str(os.getpid()), **extra},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if relay else output,
            stderr=subprocess.STDOUT if output or relay else None,
            start_new_session=True,
        )
    reader = None
    if relay is not None:
        reader = threading.Thread(target=_read, args=(popen, log, relay), daemon=True)
        reader.start()
    return Process(name, popen, log, reader)


def _read(popen: "subprocess.Popen[bytes]", log: Path | None, relay: Relay) -> None:
    """Hand on each line that a process and its own processes print, and keep it in ``log``."""
    assert popen.stdout is not None
    with popen.stdout as lines, (log or Path(os.devnull)).open("ab", buffering=0) as file:
        for line in lines:
            # A full disk, or a terminal that is gone, must not close the pipe and so end who writes into it.
            with suppress(OSError):
                file.write(line)
            with suppress(OSError):
                relay(line.decode("utf-8", errors="replace").rstrip("\n"))


@contextmanager
def open_log(log: Path | None) -> Iterator[IO[bytes] | None]:
    """The file ``log``, empty, with its folder; None for none. What was in it is in ``log`` with ``.1`` then.

    Raises ConfigError if it cannot be written.
    """
    if log is None:
        yield None
        return
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.is_file():  # a start after a crash must not wipe out why
            log.replace(log.with_name(f"{log.name}.1"))
        opened = log.open("wb")
    except OSError as error:
        raise ConfigError(f"{log} cannot be written: {error.strerror}; is it another user's?") from None
    with opened as file:
        yield file


def flower_environment(home: Path) -> dict[str, str]:
    """What each of Flower's processes gets: nothing sent home, no shared state, its commands found.

    They talk to each other on loopback, and to no proxy.
    """
    return {
        **os.environ,
        **unproxied(os.environ),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
    }


def last_line(log: Path) -> str:
    """The last line of a log file that tells of an error, else the last one; without colours and prefixes."""
    text = _COLOUR.sub("", log.read_text(encoding="utf-8", errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ranked = [[line for line in lines if pattern.search(line)] for pattern in _TELLING]
    telling = next((found for found in ranked if found), lines or [""])
    return _LOG_PREFIX.sub("", telling[-1])


def require_running(process: Process) -> None:
    """Raises PortError, ConfigError (a full disk) or UnreachableError with its last words if it has ended."""
    if process.running():
        return
    words = process.last_words()
    kind = next((kind for sign, kind in _KINDS.items() if sign in words), UnreachableError)
    raise kind(f"{process.name} ended by itself: {words}")


def stop(processes: Iterable[Process]) -> None:
    """End processes and all that they have started. Returns when none of it is left."""
    running = [process for process in processes if process.running()]
    for process in running:
        process.popen.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for process in running:
        try:
            process.popen.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
        process.drain()


def python_path() -> dict[str, str]:
    """Lets a node or server import the user's own module:function from the current folder."""
    return {"PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])}
