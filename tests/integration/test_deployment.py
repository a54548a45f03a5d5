"""Real processes over real gRPC: the same bits as in one process, and nodes that die on the way."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from client_app.app import app as client_app
from common.config import RunConfig, Value
from common.ledger import ClientRecord, End, Header, Record, RoundRecord, read
from server_app.app import app as server_app
from server_app.folder import RUN_ID, RUNS
from specfed import cluster
from specfed.addresses import reserve_port
from specfed.launcher import children, start
from specfed.live import follow
from specfed.local_grid import run_locally
from strategies.presets import PRESETS

pytestmark = pytest.mark.slow


def config(**keys: Value) -> RunConfig:
    defaults: dict[str, Value] = {"threads": 1, "eval-data": "digits", "min-nodes": 3, "tensorboard": False}
    return RunConfig.read(defaults | {k.replace("_", "-"): v for k, v in keys.items()}, "the test")


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[cluster.Federation]:
    """A server and three nodes with a third of the digits each; runs go to ``tmp_path / "runs"``."""
    shares = cluster.deal("digits", 3, "dirichlet", 1.0, 0, False, tmp_path / "rows")
    environment = {RUNS: str(tmp_path / "runs"), RUN_ID: "deployed"}
    with cluster.federation(shares.nodes, tmp_path / "fed", environment, {}) as federation:
        yield federation


@pytest.fixture
def completed(tmp_path: Path) -> Iterator[Callable[[RunConfig], list[Record]]]:
    """On a federation like ``fed``: the ledger of a run that completes, for runs one after the other."""
    runs = tmp_path / "runs"
    shares = cluster.deal("digits", 3, "dirichlet", 1.0, 0, False, tmp_path / "rows")
    with cluster.federation(shares.nodes, tmp_path / "fed", {RUNS: str(runs)}, {}) as federation:

        def ledger_of(run: RunConfig) -> list[Record]:
            started = federation.submit(run.as_dict())
            while not started.finished():
                time.sleep(0.2)
            (folder,) = runs.glob(f"*-{run.run_name}-*")
            records = list(read(folder / "ledger.jsonl"))
            assert isinstance(records[-1], End) and records[-1].status == "completed", run.run_name
            return records

        yield ledger_of


def records_of(fed: cluster.Federation, run: RunConfig, folder: Path) -> Iterator[Record]:
    """Start a run on the federation; its ledger's records until the end."""
    started = fed.submit(run.as_dict())
    fed.wait_online()
    yield from follow(folder / "ledger.jsonl", started.finished)


def test_a_deployment_and_one_process_give_the_same_bytes(
    fed: cluster.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = config(rounds=2, momentum=0.9, seed=7)
    deployed = list(records_of(fed, run, tmp_path / "runs" / "deployed"))
    assert isinstance(deployed[-1], End) and deployed[-1].status == "completed"

    monkeypatch.setenv(RUNS, str(tmp_path / "runs"))
    monkeypatch.setenv(RUN_ID, "local")
    shares = cluster.deal("digits", 3, "dirichlet", 1.0, 0, False, tmp_path / "rows")
    run_locally(server_app, client_app, run, shares.nodes)

    there, here = (tmp_path / "runs" / name / "model.safetensors" for name in ("deployed", "local"))
    assert there.read_bytes() == here.read_bytes()


@pytest.mark.timeout(900)
def test_every_weighting_runs_on_real_nodes(completed: Callable[[RunConfig], list[Record]]) -> None:
    for weighting in PRESETS:
        own: dict[str, Value] = {"proxy_data": "digits"} if weighting == "fedlaw" else {}
        records = completed(config(rounds=2, model="mlp4", run_name=weighting, weighting=weighting, **own))
        for number in (1, 2):
            weights = [r.weight for r in records if isinstance(r, ClientRecord) and r.round == number]
            assert None not in weights and sum(w or 0 for w in weights) == pytest.approx(1), weighting


def test_a_killed_node_is_missed_by_name_and_the_run_goes_on(fed: cluster.Federation, tmp_path: Path) -> None:
    run = config(rounds=2, round_timeout=10.0, min_replies=2)
    seen: list[Record] = []
    for record in records_of(fed, run, tmp_path / "runs" / "deployed"):
        seen.append(record)
        if isinstance(record, Header):
            fed.nodes["site-2"].kill()
    end = seen[-1]
    assert isinstance(end, End) and end.status == "completed-degraded"
    lost = [r for r in seen if isinstance(r, ClientRecord) and r.client == "site-2"]
    assert lost and {r.status for r in lost} == {"missing"}
    assert [r.accepted for r in seen if isinstance(r, RoundRecord)] == [2, 2]


@pytest.mark.timeout(900)
def test_algorithms_whose_halves_talk_run_on_real_nodes(
    completed: Callable[[RunConfig], list[Record]],
) -> None:
    for algorithm in ("scaffold", "fedsmoo", "ssf"):
        records = completed(config(rounds=3, model="mlp4", run_name=algorithm, algorithm=algorithm))
        assert not any(r.reason for r in records if isinstance(r, RoundRecord)), algorithm


def test_a_node_that_restarts_goes_on_from_its_disk(tmp_path: Path) -> None:
    shares = cluster.deal("digits", 3, "dirichlet", 1.0, 0, False, tmp_path / "rows")
    nodes = [n.model_copy(update={"state": str(tmp_path / "state" / n.name)}) for n in shares.nodes]
    environment = {RUNS: str(tmp_path / "runs"), RUN_ID: "deployed"}
    # More rounds than it takes; the federation ends with the test.
    run = config(rounds=500, model="mlp4", algorithm="scaffold", min_nodes=2, round_timeout=15.0)
    seen: list[Record] = []
    with cluster.federation(nodes, tmp_path / "fed", environment, {}) as fed, ExitStack() as stack:
        for record in records_of(fed, run, tmp_path / "runs" / "deployed"):
            seen.append(record)
            turn = isinstance(record, ClientRecord) and record.client == "site-2" and record.round > 3
            if turn and record.status == "accepted":  # type: ignore[union-attr]
                break
            if isinstance(record, RoundRecord) and record.round == 2:
                gone = fed.nodes["site-2"]
                children.stop([gone])
                again = start.spawn_node(
                    tmp_path / "again",
                    fed.fleet,
                    stack.enter_context(reserve_port()),
                    nodes[1].as_dict(),
                    log=tmp_path / "again.log",
                )
                stack.callback(children.stop, [again])
                while not start.online(again):
                    children.require_running(again)
                    time.sleep(0.1)
    turns = {r.round: r.status for r in seen if isinstance(r, ClientRecord) and r.client == "site-2"}
    assert turns[1] == turns[2] == "accepted"
    assert "accepted" in {status for number, status in turns.items() if number > 3}
    assert not any("lost what it remembered" in r.reason for r in seen if isinstance(r, RoundRecord))
