"""The process that app processes are forked from dies in the middle of a round: one reply is lost, no node."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.measure import descendants
from common.ledger import ClientRecord, End, Record, read
from specfed.launcher import reserve_port
from tests.commands import commands

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def warm_processes(node: int) -> list[int]:
    """Those of a node with the warm start's command line: its supervisor, itself and its forks, in this order."""
    return [pid for pid in sorted(descendants([node])) if b"launcher_process\0warm" in command_line(pid)]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def until(holds: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_warm_start_costs_one_reply_and_not_the_node(tmp_path: Path) -> None:
    def told() -> list[Record]:
        return [record for file in tmp_path.glob("runs/*/ledger.jsonl") for record in read(file)]

    def statuses(site: str) -> list[str]:
        return [r.status for r in told() if isinstance(r, ClientRecord) and r.client == site]

    with ExitStack() as stack:
        fleet, control = (stack.enter_context(reserve_port()) for _ in range(2))
        start = stack.enter_context(commands(tmp_path))
        address = ["--host", "127.0.0.1", "--port", str(fleet), "--control-port", str(control)]
        start("server", "--insecure", *address).wait_for("run folders go to")
        nodes = {
            site: start(
                *("node", "--insecure", "--server", f"127.0.0.1:{fleet}", "--name", site),
                *("--data", "digits", "--part", part),
            )
            for site, part in (("site-a", "1/2"), ("site-b", "2/2"))
        }
        for node in nodes.values():
            node.wait_for("SuperNode ID")
        a = nodes["site-a"].popen.pid
        # Epochs enough to be met at work. Flower says after 60 s that an app process has died.
        run = start(
            *(
                "run",
                "--insecure",
                "--server",
                f"127.0.0.1:{control}",
                "model=mlp4",
                "rounds=3",
                "min-nodes=2",
            ),
            *("min-replies=1", "local-epochs=200", "threads=1", "tensorboard=false", "round-timeout=150"),
        )
        until(lambda: statuses("site-a"))
        until(lambda: len(warm_processes(a)) > 2)
        for pid in warm_processes(a)[1:]:
            os.kill(pid, signal.SIGKILL)
        assert run.end(seconds=400) == 0, run.output
        assert nodes["site-a"].popen.poll() is None
    assert statuses("site-a") == ["accepted", "error", "accepted"]
    assert statuses("site-b") == ["accepted"] * 3
    end = told()[-1]
    assert isinstance(end, End) and end.rounds == 3
