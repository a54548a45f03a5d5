"""Replies that say false things of themselves, from a node that speaks Flower's own protocol, over gRPC."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.config import RunConfig
from common.ledger import ClientRecord, End, read
from server_app.folder import RUN_ID, RUNS
from specfed import cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_no_node_ends_a_run_or_fills_the_memory_by_what_its_replies_say_of_themselves(tmp_path: Path) -> None:
    shares = cluster.deal("digits", 2, "iid", 1.0, 0, False, tmp_path / "rows")
    environment = {RUNS: str(tmp_path / "runs"), RUN_ID: "run"}
    keys = {"min-nodes": 3, "rounds": 3, "model": "mlp4", "threads": 1, "tensorboard": False}
    config = RunConfig.read({**keys, "round-timeout": 60.0, "wait-timeout": 60.0}, "the test")
    with cluster.federation(shares.nodes, tmp_path / "fed", environment, {}) as fed:
        fed.wait_online()
        words = [sys.executable, "-m", "tests.integration.forger", str(fed.fleet)]
        with (
            (tmp_path / "forger.log").open("wb") as log,
            subprocess.Popen(words, stdout=log, stderr=log) as forger,
        ):
            try:
                run = fed.submit(config.as_dict())
                while not run.finished():
                    assert forger.poll() is None, (tmp_path / "forger.log").read_text()
                    time.sleep(0.2)
            finally:
                forger.terminate()
    records = list(read(tmp_path / "runs" / "run" / "ledger.jsonl"))
    lines = [record for record in records if isinstance(record, ClientRecord)]
    others = [(line.round, line.status) for line in lines if line.client != "forger"]
    assert others == [(number, "accepted") for number in (1, 1, 2, 2, 3, 3)]
    told = {line.round: (line.status, line.reason) for line in lines if line.client == "forger"}
    assert {status for status, _ in told.values()} == {"error"}
    assert "TypeError: it is no message but of type ConfigRecord" in told[1][1]
    assert "UnicodeDecodeError" in told[2][1]
    assert re.search(r"it would take 2,\d{3},\d{3},\d{3} bytes of memory; it may take \d{2},", told[3][1])
    end = records[-1]
    assert isinstance(end, End) and end.status == "completed-degraded" and end.accuracy is not None
