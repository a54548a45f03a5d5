"""Short naps in a run, long ones after it; without Flower's fixed intervals."""

import importlib
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
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


def test_a_node_naps_shortly_after_work_and_longer_when_idle(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node: Any = importlib.import_module("flwr.supernode.start_client_internal")
    monkeypatch.setattr(node, "time", node.time)  # put back at the end
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


def test_a_nodes_process_naps_so_and_asks_soon_for_what_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    node: Any = importlib.import_module("flwr.supernode.start_client_internal")
    monkeypatch.setattr(node, "time", node.time)
    monkeypatch.setitem(pull_objects.__kwdefaults__, "initial_backoff", 1)
    seen: list[object] = []
    monkeypatch.setattr(
        "flwr.supernode.cli.flower_supernode",
        lambda: seen.extend([type(node.time), pull_objects.__kwdefaults__["initial_backoff"]]),
    )
    supervisor._supernode()
    assert seen == [SimpleNamespace, FIRST_PAUSE]


def test_an_unknown_flower_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    node: Any = importlib.import_module("flwr.supernode.start_client_internal")
    superexec: Any = importlib.import_module("flwr.supercore.superexec.run_superexec")
    before = node.time, superexec.time
    monkeypatch.setattr("flwr.supercore.version.package_version", "1.40.0")
    assert not naps.patch_node() and not naps.patch_superexec()
    assert (node.time, superexec.time) == before and not isinstance(node.time, SimpleNamespace)


def test_the_program_is_flowers_superexec(tmp_path: Path) -> None:
    program = naps.install(tmp_path / "programs") / "flower-superexec"
    done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=120, check=True)
    assert "usage: flower-superexec" in done.stdout
