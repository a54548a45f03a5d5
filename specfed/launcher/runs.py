"""Runs on a server: how they are handed to it, watched and stopped, with Flower's own command line."""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from common.config import Value
from common.errors import ConfigError, RunFailed, UnreachableError, nearest
from specfed.addresses import Address
from specfed.launcher.children import WRAPPER, Process, flower_environment, open_log
from specfed.launcher.supervisor import PARENT
from specfed.settings import toml

SUBMIT_SECONDS = 120.0
AWAY_SECONDS = 60.0  # that a server may be away while a run is watched
_SERVER = "specfed"  # name of the one connection in the configuration of Flower's command line


@dataclass(frozen=True)
class Control:
    """The way to a server that takes runs. ``home`` takes scratch files and must outlive its use."""

    address: Address
    ca: Path | None
    home: Path

    def flwr(self, *arguments: str, output: IO[bytes] | int | None = None) -> "subprocess.Popen[bytes]":
        """Start Flower's own command line with this server as its only one; it writes to ``output``."""
        self.home.mkdir(parents=True, exist_ok=True)
        trust = "insecure = true" if self.ca is None else f"root-certificates = {toml(str(self.ca))}"
        connection = f'[superlink.{_SERVER}]\naddress = "{self.address}"\n{trust}\n'
        (self.home / "config.toml").write_text(connection, encoding="utf-8")
        return subprocess.Popen(
            [*WRAPPER, "flwr", *arguments],
            env={**flower_environment(self.home), PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


@dataclass(frozen=True)
class RunStatus:
    """How Flower sees a run."""

    id: str
    state: str  # "pending", "starting", "running", "finished:completed", "finished:failed", ...
    details: str
    asked: str  # when it was asked for: date and time, UTC
    seconds: float  # that it has been running

    @property
    def mark(self) -> str:
        """The short name, with which the name of the run's folder ends."""
        return mark_of(self.id)

    @property
    def word(self) -> str:
        """How it stands, in one word."""
        return self.state.rpartition(":")[2]

    @property
    def finished(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state.startswith("finished")


def submit(control: Control, app: Path, config: Mapping[str, Value]) -> str:
    """Start a run of the app folder ``app``; its id on the server.

    Raises UnreachableError if the server cannot be reached, RunFailed if it refuses.
    """
    control.home.mkdir(parents=True, exist_ok=True)
    file = control.home / "run.toml"
    file.write_text("".join(f"{key} = {toml(value)}\n" for key, value in config.items()), encoding="utf-8")
    reply = _ask(control, "run", str(app), _SERVER, "--run-config", str(file))
    return str(reply["run-id"])


def stop_run(control: Control, run: str) -> None:
    """Ask the server to end a run. Raises as ``status``, also for one that has ended."""
    _ask(control, "stop", run, _SERVER)


def status(control: Control, run: str) -> RunStatus:
    """How a run stands. Raises UnreachableError or RunFailed if the server does not say."""
    return _statuses(_ask(control, "ls", _SERVER, "--run-id", run))[0]


def statuses(control: Control, most: int | None = None) -> list[RunStatus]:
    """How the runs stand that the server knows, or the latest of them, the latest first.

    Raises as ``status``.
    """
    limit = [] if most is None else ["--limit", str(most)]
    return _statuses(_ask(control, "ls", _SERVER, *limit))


def _statuses(reply: Mapping[str, Any]) -> list[RunStatus]:
    return [
        RunStatus(one["run-id"], one["status"], one["status-details"], one["pending-at"], one["elapsed"])
        for one in reply["runs"]
    ]


def mark_of(run: str) -> str:
    """The end of Flower's id of a run, with which the name of its folder ends."""
    return f"{int(run):04x}"[-4:]


def find(control: Control, text: str) -> RunStatus:
    """The run that is meant by ``text``, as ``pick`` says. Raises as ``status`` and ``pick``."""
    return pick(statuses(control), text)


def pick(runs: Sequence[RunStatus], text: str) -> RunStatus:
    """The run, of some, the latest first, that is meant by its id, its mark, or a name that ends with it.

    The latest one for an empty text. Raises ConfigError if there is none, or more than one.
    """
    if not runs:
        raise ConfigError("the server has had no run yet")
    if not text:
        return runs[0]
    mark = text.rpartition("-")[2]
    found = [one for one in runs if text == one.id or mark == one.mark]
    if not found:
        known = nearest(mark, [one.mark for one in runs]) or "'specfed status' lists them."
        raise ConfigError(f'the server knows no run "{text}". {known}')
    if len(found) > 1:
        ids = ", ".join(one.id for one in found)
        raise ConfigError(f'"{text}" is the mark of {len(found)} runs; take one of their ids: {ids}')
    return found[0]


def keep_log(control: Control, run: str, file: Path) -> Process:
    """Copy a run's log into ``file`` as it comes; the process that does so ends when the run has ended."""
    with open_log(file) as output:
        return Process("log", control.flwr("log", run, _SERVER, "--stream", output=output), file)


def log_lines(control: Control, run: str) -> Iterator[str]:
    """The lines of a run's log from its start, as they come, until the run has ended.

    They are here about half a second after they were printed. When the connection breaks, the log is
    asked for again and goes on where it stopped. Raises UnreachableError if the server stays away for
    a minute, RunFailed if it no longer knows the run.
    """
    seen = 0
    while True:
        process = control.flwr("log", run, _SERVER, "--stream", output=subprocess.PIPE)
        assert process.stdout is not None
        try:
            for number, line in enumerate(process.stdout):
                if number >= seen:
                    seen = number + 1
                    yield line.decode("utf-8", errors="replace")
            process.wait()  # its exit code tells nothing: it is 0 when the server broke the stream off, too
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()
        if _wait_for_status(control, run).finished:
            return


def _wait_for_status(control: Control, run: str) -> RunStatus:
    deadline = time.monotonic() + AWAY_SECONDS
    while True:
        try:
            return status(control, run)
        except UnreachableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def _ask(control: Control, *arguments: str) -> dict[str, Any]:
    """The answer to one of Flower's commands."""
    process = control.flwr(*arguments, "--format", "json", output=subprocess.PIPE)
    try:
        output, _ = process.communicate(timeout=SUBMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"the server at {control.address} did not answer in time") from None
    finally:
        process.terminate()
        process.wait()
    try:
        text = output.decode("utf-8", errors="replace")
        reply: dict[str, Any] = json.loads(text[text.index("{") :])
    except ValueError:
        raise RunFailed(f"'flwr {arguments[0]}' said nothing that can be read: {output[-200:]!r}") from None
    if reply.get("success"):
        return reply
    message = " ".join(str(reply.get("error-message", reply)).split())
    if "unavailable" in message:
        raise UnreachableError(f"no server answers at {control.address}")
    raise RunFailed(f"the server at {control.address} refused '{arguments[0]}': {message}")
