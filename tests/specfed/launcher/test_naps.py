"""Short naps in a run, long ones after it; without Flower's fixed intervals."""

import importlib
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from flwr.client.grpc_rere_client import connection
from flwr.supercore import http_logging
from flwr.supercore.inflatable.inflatable_utils import pull_objects

from common.patience import FIRST_PAUSE
from specfed.launcher import naps, supervisor


class Clock:
    """A clock that sleeping moves on."""

    def __init__(self) -> None:
        self.now, self.naps = 1000.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(naps, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("idle", "seconds"), [(0, 0.3), (15, 0.3), (50, 1.0), (100, 2.0), (150, 3.0), (1e6, 3.0)]
)
def test_a_nap_is_a_share_of_the_idle_time_within_limits(idle: float, seconds: float) -> None:
    assert naps.nap_length(idle, 0.3) == pytest.approx(seconds)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Flower's module of the SuperNode's loop; what is patched for nodes is put back at the end."""
    node: Any = importlib.import_module("flwr.supernode.start_client_internal")
    monkeypatch.setattr(node, "time", node.time)
    monkeypatch.setattr(node, "register_signal_handlers", node.register_signal_handlers)
    monkeypatch.setattr(connection, "create_channel", connection.create_channel)
    monkeypatch.setattr(uvicorn.Server, "main_loop", uvicorn.Server.main_loop)
    monkeypatch.setattr(http_logging, "ROUTINE_ACCESS_PATHS", http_logging.ROUTINE_ACCESS_PATHS)
    return node


def test_a_node_naps_shortly_after_work_and_longer_when_idle(clock: Clock, node: Any) -> None:
    assert naps.patch_node()
    node.time.sleep(3)
    clock.now += 100
    node.time.sleep(3)
    node.time.sleep(0.5)  # waits for the reply to a message
    node.time.sleep(3)
    clock.now += 1000
    node.time.sleep(3)
    assert clock.naps == pytest.approx([0.3, 2.006, 0.3, 0.3, 3.0])


def test_a_superexec_naps_shortly_after_a_start(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    superexec: Any = importlib.import_module("flwr.supercore.superexec.run_superexec")
    told: list[tuple[object, ...]] = []
    monkeypatch.setattr(superexec, "time", superexec.time)
    monkeypatch.setattr(superexec, "_handle_launch_result", lambda *arguments: told.append(arguments))
    assert naps.patch_superexec()
    clock.now += 100
    superexec.time.sleep(0.2)
    superexec._handle_launch_result("result", "task")
    superexec.time.sleep(0.2)
    assert clock.naps == pytest.approx([2.0, 0.2]) and told == [("result", "task")]


def test_a_node_does_not_watch_its_connection(node: Any) -> None:
    def threads_that_watch() -> int:
        channel = connection.create_channel("127.0.0.1:1", insecure=True)
        before = set(threading.enumerate())
        channel.subscribe(connection.on_channel_state_change)
        started = set(threading.enumerate()) - before
        channel.unsubscribe(connection.on_channel_state_change)
        for thread in started:
            thread.join()
        channel.close()
        return len(started)

    assert threads_that_watch() > 0  # what there is to save
    assert naps.patch_node()
    assert threads_that_watch() == 0


def test_an_http_server_looks_twice_a_second_and_stops_when_told(node: Any) -> None:
    async def no_app(scope: object, receive: object, send: object) -> None:
        """Never called."""

    assert naps.patch_http()
    server = uvicorn.Server(uvicorn.Config(no_app, port=0, ws="none", lifespan="off", log_level="error"))
    ticks: list[int] = []

    async def on_tick(tick: int) -> bool:
        ticks.append(tick)
        server.should_exit = len(ticks) == 3
        return await uvicorn.Server.on_tick(server, tick)

    server.on_tick = on_tick  # type: ignore[method-assign]
    started = time.monotonic()
    server.run()
    assert ticks == [0, 5, 10]  # of ten a second: where they are full seconds, uvicorn sets its clock
    assert time.monotonic() - started > 0.9


@pytest.mark.parametrize(
    ("request_", "status", "told"),
    [
        ("/v1/runtime/pull-object", 200, False),
        ("/v1/runtime/pull-messages", 200, False),
        ("/v1/runtime/pull-object", 500, True),
        ("/v1/control/start-run", 200, True),
    ],
)
def test_requests_that_went_well_do_not_fill_the_log(
    node: Any, monkeypatch: pytest.MonkeyPatch, request_: str, status: int, told: bool
) -> None:
    before = logging.getLogRecordFactory()
    assert naps.patch_http()
    supervisor._log_visibly()
    try:
        arguments = ("127.0.0.1:1", "POST", request_, "1.1", status)
        text = '%s - "%s %s HTTP/%s" %d'
        record = logging.getLogger("uvicorn.access").makeRecord(
            "uvicorn.access", logging.INFO, "", 1, text, arguments, None
        )
    finally:
        logging.setLogRecordFactory(before)
    assert http_logging.RoutineAccessFilter().filter(record) is told


def test_a_nodes_process_naps_so_and_asks_soon_for_what_is_late(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(pull_objects.__kwdefaults__, "initial_backoff", 1)
    before, seen = uvicorn.Server.main_loop, list[object]()
    monkeypatch.setattr(
        "flwr.supernode.cli.flower_supernode",
        lambda: seen.extend(
            [
                type(node.time),
                pull_objects.__kwdefaults__["initial_backoff"],
                uvicorn.Server.main_loop is not before,
            ]
        ),
    )
    supervisor._supernode()
    assert seen == [SimpleNamespace, FIRST_PAUSE, True]


def test_a_servers_process_looks_less_often_too(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = uvicorn.Server.main_loop, list[object]()
    monkeypatch.setattr("flwr.superlink.cli.flower_superlink", lambda: seen.append(uvicorn.Server.main_loop))
    supervisor._superlink()
    assert len(seen) == 1 and seen != [before]


def test_an_unknown_flower_stays_as_it_is(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    superexec: Any = importlib.import_module("flwr.supercore.superexec.run_superexec")
    before = node.time, superexec.time, connection.create_channel, uvicorn.Server.main_loop
    routine = http_logging.ROUTINE_ACCESS_PATHS
    monkeypatch.setattr("flwr.supercore.version.package_version", "1.40.0")
    assert not naps.patch_node() and not naps.patch_superexec() and not naps.patch_http()
    assert (node.time, superexec.time, connection.create_channel, uvicorn.Server.main_loop) == before
    assert routine == http_logging.ROUTINE_ACCESS_PATHS
    assert not isinstance(node.time, SimpleNamespace)


def test_the_program_is_flowers_superexec(tmp_path: Path) -> None:
    program = naps.install(tmp_path / "programs") / "flower-superexec"
    done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=120, check=True)
    assert "usage: flower-superexec" in done.stdout


def test_the_program_works_from_a_python_whose_path_has_a_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my env").mkdir()
    python = tmp_path / "my env" / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    program = naps.install(tmp_path / "programs") / "flower-superexec"
    done = subprocess.run([program, "a b", "--x"], capture_output=True, text=True, check=True)
    assert done.stdout == "-P -m specfed.launcher.naps a b --x\n"
