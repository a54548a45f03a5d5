"""How data are dealt out to the nodes of a federation, and real federations of processes."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from common.config import NodeConfig, RunConfig
from common.datasets import load
from common.errors import ConfigError, DataError, ModelError
from common.ledger import ClientRecord, End, read
from specfed import cluster
from specfed.addresses import LOOPBACK, Address, reserve_port
from specfed.cluster import deal, federation, take_part
from specfed.launcher import start

MARK = "SPECFED_TEST_MARK"  # in the environment of all processes of one test


@pytest.mark.parametrize("place", ["nowhere", "file"])
def test_without_a_folder_for_scratch_files_tmpdir_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / place))
    with (
        pytest.raises(ConfigError, match=r"scratch files can be made: N.* directory; set TMPDIR"),
        cluster.scratch(),
    ):
        pass


def test_every_row_goes_to_one_node(tmp_path: Path) -> None:
    shares = deal("digits", 3, "dirichlet", 0.3, 0, False, tmp_path)
    rows = np.concatenate([np.load(node.rows) for node in shares.nodes])
    assert sorted(rows) == list(range(shares.train))
    assert [node.name for node in shares.nodes] == ["site-1", "site-2", "site-3"]
    assert shares.free_rider == ""
    assert (shares.train, shares.test) == (len(load("digits", "train")), len(load("digits", "test")))


def test_the_free_rider_repeats_a_few_rows_to_the_size_of_the_others(tmp_path: Path) -> None:
    honest = deal("digits", 3, "dirichlet", 0.3, 0, False, tmp_path / "honest")
    shares = deal("digits", 3, "dirichlet", 0.3, 0, True, tmp_path / "ridden")
    first, second, rider = (np.load(node.rows) for node in shares.nodes)
    assert shares.free_rider == "site-3"
    assert len(rider) == round((len(first) + len(second)) / 2)
    assert len(np.unique(rider)) <= 10
    assert set(rider) <= set(np.load(honest.nodes[2].rows))
    assert np.array_equal(first, np.load(honest.nodes[0].rows))


def test_two_nodes_have_no_free_rider(tmp_path: Path) -> None:
    assert deal("digits", 2, "iid", 1.0, 0, True, tmp_path).free_rider == ""


def test_one_node_is_no_federation(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--nodes takes at least 2; got 1"):
        deal("digits", 1, "iid", 1.0, 0, True, tmp_path)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_parts_are_all_the_data_and_do_not_overlap(tmp_path: Path, alpha: float) -> None:
    config = NodeConfig(name="a", data="digits")
    rows = []
    for part in ("1/3", "2/3", "3/3"):
        mine, count = take_part(config, part, alpha, 7, tmp_path)
        rows.append(np.load(mine.rows))
        assert count == len(rows[-1])
    assert sorted(np.concatenate(rows)) == list(range(len(load("digits", "train"))))


def test_without_a_part_a_node_uses_all_its_data(tmp_path: Path) -> None:
    config = NodeConfig(name="a", data="digits")
    assert take_part(config, "", 0.0, 0, tmp_path) == (config, len(load("digits", "train")))


def test_a_node_without_data_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        take_part(NodeConfig(name="a", data="nowhere.npz"), "", 0.0, 0, tmp_path)


# --- real processes ----------------------------------------------------------------------------------


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Marks all processes that a test starts; none of them may be left when it is over."""
    value = uuid4().hex
    monkeypatch.setenv(MARK, value)
    yield value
    for pid in marked(value):
        os.kill(pid, signal.SIGKILL)


def marked(mark: str) -> list[int]:
    """Pids of the living processes, other than this one, that carry the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:  # it has just ended, or is not ours
                continue
            if f"{MARK}={mark}".encode() in environment:
                found.append(int(entry.name))
    return found


def gone(mark: str, seconds: float) -> bool:
    """Whether all marked processes end within so many seconds."""
    deadline = time.monotonic() + seconds
    while marked(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def start_demo(folder: Path, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "specfed.cli", "demo", "--nodes", "2", "tensorboard=false", *words]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_demo_from_start_to_end(tmp_path: Path, mark: str) -> None:
    process = start_demo(tmp_path, "--rounds", "2", "--partition", "iid", "--model", "mlp4")
    output, errors = process.communicate(timeout=500)
    assert process.returncode == 0, output + errors
    assert not marked(mark)
    (folder,) = (tmp_path / "runs").iterdir()
    records = list(read(folder / "ledger.jsonl"))
    assert isinstance(records[-1], End)
    assert records[-1].status == "completed"
    assert (folder / "report.html").is_file()
    assert {path.name for path in (folder / "logs").iterdir()} == {
        "run.log",
        "server.log",
        "site-1.log",
        "site-2.log",
        "warm.log",
    }
    assert f"every number: {folder}/report.html" in output
    assert errors == ""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_demo_says_what_becomes_of_its_free_rider(tmp_path: Path) -> None:
    options = ("--rounds", "1", "--partition", "iid", "--nodes", "3")
    output, errors = start_demo(tmp_path, *options, "--free-rider").communicate(timeout=500)
    assert "site-3, the free-rider, is not told by its updates here: few samples train, too" in output, errors
    output, _ = start_demo(tmp_path, *options, "--free-rider", "contribution=off").communicate(timeout=500)
    assert "completed" in output and "not told" not in output


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
    ids=["ctrl-c", "sigterm", "kill-9"],
)
def test_nothing_is_left_of_a_demo_that_is_cut_off(
    tmp_path: Path, mark: str, number: signal.Signals, code: int
) -> None:
    process = start_demo(tmp_path, "--rounds", "50", "--model", "mlp4", "round-timeout=30")
    assert process.stdout is not None
    for line in process.stdout:
        if "replies" in line:  # the table's head: nodes are at work
            break
    else:
        pytest.fail(f"the demo ended by itself: {process.communicate()}")
    assert len(marked(mark)) > 6
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in errors
    # Only a kill leaves work to those that it orphans.
    assert gone(mark, 20.0 if number == signal.SIGKILL else 0.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_goes_on_without_a_node_that_crashes(tmp_path: Path, mark: str) -> None:
    from common.config import RunConfig
    from specfed.live import follow

    shares = deal("digits", 3, "iid", 1.0, 0, False, tmp_path / "rows")
    environment = {"SPECFED_RUNS": str(tmp_path), "SPECFED_RUN_ID": "crash", "OMP_NUM_THREADS": "1"}
    config = RunConfig(
        model="mlp4", rounds=3, min_nodes=3, min_replies=2, round_timeout=25.0, threads=1, tensorboard=False
    )
    with federation(shares.nodes, tmp_path / "work", environment, environment) as fed:
        fed.submit(config.as_dict())
        fed.wait_online()
        records = []
        for record in follow(tmp_path / "crash" / "ledger.jsonl", lambda: False):
            records.append(record)
            if len(records) == 1:
                fed.nodes["site-2"].kill()
    end = records[-1]
    assert isinstance(end, End)
    assert end.status == "completed-degraded"
    lost = {r.client for r in records if isinstance(r, ClientRecord) and r.status in ("missing", "error")}
    assert lost == {"site-2"}
    assert not marked(mark)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_federations_at_once_do_not_collide(tmp_path: Path, mark: str) -> None:
    nodes = deal("digits", 2, "iid", 1.0, 0, False, tmp_path / "rows").nodes
    with (
        federation(nodes[:1], tmp_path / "one", {}, {}) as one,
        federation(nodes[1:], tmp_path / "two", {}, {}) as two,
    ):
        one.wait_online()
        two.wait_online()
        ports = {one.server.fleet, one.server.control, two.server.fleet, two.server.control}
        assert len(ports) == 4
    assert not marked(mark)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_whose_port_is_taken_after_all(tmp_path: Path, mark: str) -> None:
    """Between the check and the start another process may come; Flower's own words are passed on."""
    import socket

    from common.errors import PortError

    with socket.create_server((LOOPBACK, 0)) as taken, reserve_port() as port:
        fleet = Address(LOOPBACK, taken.getsockname()[1])
        server = start.spawn_server(tmp_path, fleet, Address(LOOPBACK, port), log=tmp_path / "log")
        with pytest.raises(PortError, match="already in use"):
            start.wait_ready(server)
    assert not marked(mark)


def test_scratch_is_gone_after_use() -> None:
    with cluster.scratch() as folder:
        (folder / "file").touch()
    assert not folder.exists()


def test_a_model_that_does_not_fit_is_told_before_anything_starts(tmp_path: Path) -> None:
    shares = deal("tests.federation:blobs", 2, "iid", 1.0, 0, False, tmp_path)
    with pytest.raises(ModelError, match=r"the model must give \(2, 4\) logits for 2 rows; it gave \(2, 5\)"):
        cluster.try_model(RunConfig(model="tests.federation:headed_elsewhere"), shares)
    cluster.try_model(RunConfig(model="tests.federation:small_net"), shares)
