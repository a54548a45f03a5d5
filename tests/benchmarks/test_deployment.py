"""What the benchmark of deployments makes of a run and of processes; no deployment is started here."""

import os

import pytest

from benchmarks import deployment
from benchmarks.deployment import Round
from common.ledger import ClientRecord, Record, RoundRecord


def told(round_: int, elapsed: float, *seconds: float | None) -> list[Record]:
    clients: list[Record] = [
        ClientRecord(round=round_, client=f"site-{i}", status="accepted", seconds=s)
        for i, s in enumerate(seconds)
    ]
    end = RoundRecord(
        round=round_, rounds=2, sampled=2, accepted=2, moved=True, seconds=elapsed, elapsed=elapsed
    )
    return [*clients, end]


def test_overhead_is_what_the_slowest_node_did_not_need() -> None:
    rounds = deployment.rounds_of_ledger([*told(1, 10.0, 1.0, 2.0), *told(2, 15.0, 3.0, None)])
    assert rounds == [Round(10.0, 2.0), Round(15.0, 3.0)]
    assert deployment.overheads(rounds) == [2.0]
    assert deployment.overheads(rounds[:1]) == []


def test_the_stock_apps_rounds_are_read_from_its_log() -> None:
    lines = [
        "INFO :      Starting\n",
        'timed {"round": 0, "at": 5.0, "node-seconds": 0}\n',
        'timed {"round": 1, "at": 9.5, "node-seconds": 0.25}\n',
    ]
    assert deployment.rounds_of_log(lines) == [Round(9.5, 0.25)]


@pytest.mark.parametrize(
    ("command", "role"),
    [
        ("python -P -m specfed.launcher.supervisor supernode --superlink localhost:1", "supernode"),
        ("python flower-supernode --superlink localhost:1", "supernode"),
        ("python -P -m specfed.launcher.naps --insecure --runtime-api-address 127.0.0.1:1", "superexec"),
        ("python -P -m specfed.launcher.supervisor warm /x/warm.sock", "warm start"),
        ("python -m specfed.cli node --config node.toml", "specfed"),
        ("sleep 5", "other"),
    ],
)
def test_a_process_is_told_by_its_command_line(command: str, role: str) -> None:
    assert deployment.role(command) == role


def test_idle_cost_is_in_percent_of_one_core() -> None:
    second = os.sysconf("SC_CLK_TCK")
    me, gone = os.getpid(), 2**22 + 1  # no process has the second number
    cost = deployment.idle_cost({me: second}, {me: 3 * second, gone: second}, seconds=30.0)
    assert cost["percent-of-one-core"] == pytest.approx(10.0)
    assert cost["processes"] == 2
    rss, pss = cost["rss-mib"], cost["pss-mib"]
    assert isinstance(rss, int) and isinstance(pss, int) and rss >= pss > 10
