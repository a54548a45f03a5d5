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
from specfed.addresses import reserve_port
from specfed.launcher.children import WRAPPER
from tests.commands import commands

WARM = "\0".join([WRAPPER[-1], "warm"]).encode()  # in its command line

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def warm_processes(node: int) -> list[int]:
    """Those of a node with the warm start's command line: its supervisor, itself and its forks, in this order."""
    return [pid for pid in sorted(descendants([node])) if WARM in command_line(pid)]


def at_work(node: int) -> bool:
    """Whether a fork has used as much CPU time as only training needs."""
    ticks = descendants([node])
    return any(ticks.get(pid, 0) > 2 * os.sysconf("SC_CLK_TCK") for pid in warm_processes(node)[2:])


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def until(holds: Callable[[], object], seconds: float = 300) -> None:
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
        options = ["model=mlp4", "rounds=2", "min-nodes=2", "min-replies=1", "local-epochs=300", "threads=1"]
        options += ["tensorboard=false", "round-timeout=200"]
        run = start("run", "--insecure", "--server", f"127.0.0.1:{control}", *options)
        until(lambda: at_work(a))
        for pid in warm_processes(a)[1:]:
            os.kill(pid, signal.SIGKILL)
        assert run.end(seconds=500) == 0, run.output
        assert nodes["site-a"].popen.poll() is None
    assert statuses("site-a") == ["error", "accepted"]
    assert statuses("site-b") == ["accepted"] * 2
    end = told()[-1]
    assert isinstance(end, End) and end.rounds == 2
