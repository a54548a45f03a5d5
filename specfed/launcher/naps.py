"""How long Flower's processes sleep before they ask for work again: shortly in a run, longer when idle.

Flower asks at fixed intervals: short ones cost an idle machine CPU time, long ones slow each round. Here a
nap is a small share of the time since the last work, so that what it adds to a wait stays small beside it.
What is left, and nobody needs so often, is slowed as well: the ticks of HTTP servers, and a node's watch over
its connection's state.
"""

import importlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SHARE = 0.02  # of the time since the last work
LONGEST = 3.0  # seconds; Flower's own for nodes
NODE_SHORTEST = 0.3  # of nodes that ask their server for messages
TASK_SHORTEST = 0.2  # of those that start app processes
REPLY_NAP = 0.3  # while a node waits for its own app process
ROUTINE = {
    f"/v1/runtime/{call}"
    for call in ("pull-object", "push-object", "pull-messages", "push-messages", "confirm-message-received")
}
TICKS = 5  # of uvicorn's tenths of a second, in one: so much later may it see that it is to stop
PATCHED_FLOWER = "1.39."


def nap_length(idle: float, shortest: float) -> float:
    """Seconds to sleep after ``idle`` seconds without work: ``SHARE`` of them, within the two limits."""
    return min(max(shortest, SHARE * idle), LONGEST)


@dataclass
class Naps:
    """The naps of one process, and when it last had work."""

    shortest: float
    worked: float = field(default_factory=lambda: time.monotonic())  # late: tests bring a clock

    def work(self) -> None:
        """There is work now."""
        self.worked = time.monotonic()

    def nap(self) -> None:
        """Sleep for as long as the wait so far allows."""
        time.sleep(nap_length(time.monotonic() - self.worked, self.shortest))


def patch_node() -> bool:
    """Let the SuperNode in this process sleep so. False, and nothing changed, for an unknown Flower."""
    if not _known():
        return False
    node: Any = importlib.import_module("flwr.supernode.start_client_internal")
    naps = Naps(NODE_SHORTEST)

    def sleep(seconds: float) -> None:
        if seconds >= LONGEST:  # no message
            naps.nap()
        else:  # a message is being worked on
            time.sleep(min(seconds, REPLY_NAP))
            naps.work()

    node.time = SimpleNamespace(sleep=sleep)
    connection: Any = importlib.import_module("flwr.client.grpc_rere_client.connection")
    connection.create_channel = _unwatched(connection.create_channel)
    return patch_http()


def patch_http() -> bool:
    """Let HTTP servers in this process look less often whether they are to stop, and what time it is, and log
    no request of a run's processes that went well. False, and nothing changed, for an unknown Flower."""
    if not _known():
        return False
    uvicorn: Any = importlib.import_module("uvicorn.server")

    async def main_loop(server: Any) -> None:
        tick = 0
        while not await server.on_tick(tick):
            tick += TICKS
            await uvicorn.asyncio.sleep(TICKS / 10)

    uvicorn.Server.main_loop = main_loop
    logs: Any = importlib.import_module("flwr.supercore.http_logging")
    logs.ROUTINE_ACCESS_PATHS |= ROUTINE  # many a second, which nothing would ever take off the disk
    return True


def _unwatched(create_channel: Callable[..., Any]) -> Callable[..., Any]:
    """``create_channel``, whose channels take no subscriber: for one gRPC polls five times a second."""

    def create(*arguments: Any, **more: Any) -> Any:
        channel = create_channel(*arguments, **more)
        channel.subscribe = lambda callback: None
        return channel

    return create


def patch_superexec() -> bool:
    """Let the SuperExec in this process sleep so. False, and nothing changed, for an unknown Flower."""
    if not _known():
        return False
    superexec: Any = importlib.import_module("flwr.supercore.superexec.run_superexec")
    naps = Naps(TASK_SHORTEST)
    launched = superexec._handle_launch_result

    def handle(*arguments: Any) -> None:
        naps.work()
        launched(*arguments)

    superexec._handle_launch_result = handle
    superexec.time = SimpleNamespace(sleep=lambda _seconds: naps.nap())
    return True


def install(folder: Path) -> Path:
    """Write a program ``flower-superexec`` that sleeps so into ``folder``; put that first on the PATH."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_program(folder / "flower-superexec", ["-P", "-m", "specfed.launcher.naps"])
    return folder


def write_program(file: Path, arguments: Sequence[str]) -> None:
    """Write a program that is this Python with these arguments and its own. Only this user can start it.

    The shell starts it, since a path with a space cannot stand behind ``#!``.
    """
    partial = file.with_name(f".{os.getpid()}")
    partial.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *arguments])} "$@"\n', encoding="utf-8")
    partial.chmod(0o700)
    partial.replace(file)


def _known() -> bool:
    from flwr.supercore.version import package_version

    return package_version.startswith(PATCHED_FLOWER)


def main() -> None:
    """``python -m specfed.launcher.naps ARGUMENTS``: Flower's SuperExec with these naps."""
    from flwr.supercore.cli import flower_superexec

    sys.argv[0] = "flower-superexec"
    patch_superexec()
    flower_superexec()


if __name__ == "__main__":
    main()
