"""Separate machines, on this one: TLS, enrolled keys, a server that restarts. Real processes throughout."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.measure import descendants
from common.ledger import End
from tests.deployment import SITES, Deployment, deployment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RUN = ("model=mlp4", "tensorboard=false", "threads=1", "round-timeout=20")


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Deployment]:
    with deployment(tmp_path) as fed:
        yield fed


def test_only_enrolled_nodes_take_part_and_a_restart_forgets_none(fed: Deployment, tmp_path: Path) -> None:
    server = fed.server()
    assert "takes enrolled nodes only" in server.output
    with grpc.insecure_channel(f"127.0.0.1:{fed.ports[2]}") as channel:
        check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert check.status == health_pb2.HealthCheckResponse.SERVING

    for site in SITES[:2]:
        code, output = fed.done("enroll", f"certs/{site}/{site}.pub", *fed.config)
        assert code == 0 and output.startswith(f"enrolled {site} · key SHA256:"), output
    assert fed.nodes() == {"site-a": "never seen", "site-b": "never seen"}

    # An enrolled key under another name than its own is refused by the run, and says so.
    wrong, site_a = fed.node("site-b", "2/2", "--name", "site-x"), fed.node("site-a", "1/2")
    fed.online(wrong, site_a)
    code, output = fed.done("run", *fed.config, *RUN, "rounds=1", "min-nodes=1", "run-name=short")
    assert code == 0, output
    assert 'a node called "site-x" has the key enrolled as "site-b"' in str(fed.ledger("short"))
    assert fed.rounds("short") == {1: ["site-a"]}
    code, again = fed.done("watch", *fed.config)
    assert code == 0 and re.search(r"\n +1/1 +\d+\.\d % ", again), again
    # Stopped as systemd does it, the node takes its leave, so that the server takes its key again at once.
    for pid in {wrong.popen.pid, *descendants([wrong.popen.pid])}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    assert wrong.end() == 143
    site_b = fed.node("site-b", "2/2")
    fed.online(site_b)

    # A revoked node drops out of a run that goes on, and ends.
    long = fed.start("run", *fed.config, *RUN, "rounds=1000", "min-nodes=2", "run-name=long")
    fed.until(lambda: 2 in fed.rounds("long"))
    assert fed.done("revoke", "site-b", *fed.config) == (0, "revoked site-b\n")
    assert site_b.end() == 5
    assert "no longer accepts key" in site_b.output and "it was revoked" in site_b.output
    assert "Traceback" not in site_b.output, site_b.output
    assert fed.rounds("long")[2] == ["site-a", "site-b"]
    later = max(fed.rounds("long")) + 2
    fed.until(lambda: later in fed.rounds("long"))
    assert fed.rounds("long")[later] == ["site-a"]

    # The server stops in the middle, and says what ran.
    assert server.end(signal.SIGTERM) == 143
    stopped = re.search(
        r"run (\S+) · stopped after round (\d+) of 1000; resume=\1 goes on with it", server.output
    )
    assert stopped is not None, server.output
    assert long.end(seconds=200) in (5, 7, 130), long.output
    assert site_a.popen.poll() is None

    # Restarted, it knows its nodes, and the run goes on from its checkpoint.
    server = fed.server("--log-format", "json")
    fed.until(lambda: fed.nodes() == {"site-a": "online", "site-b": "revoked"})
    rounds = int(stopped[2]) + 1
    again = (f"resume={stopped[1]}", f"rounds={rounds}", "min-nodes=1")
    # Typed where the run's folder is not, its configuration has to be given again.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    reach = ("--server", f"localhost:{fed.ports[1]}", "--tls-ca", str(tmp_path / "certs/server/ca.crt"))
    refused = fed.start("run", *reach, *again, at=elsewhere)
    assert refused.end(seconds=240) == 2
    assert 'model: stored "mlp4", got "cnn5"' in refused.output, refused.output
    code, output = fed.done("run", *fed.config, *again)
    assert code == 0, output
    config = str(tmp_path / "runs" / stopped[1] / "config.json")
    repeated = fed.start("run", *reach, config, *again[:1], f"rounds={rounds + 1}", at=elsewhere)
    assert repeated.end(seconds=240) == 0, repeated.output
    end = fed.ledger("long")[-1]
    assert isinstance(end, End) and end.rounds == rounds + 1

    code, output = fed.done("enroll", "certs/site-b/site-b.pub", *fed.config)
    assert code == 2 and "this key was revoked as site-b" in output
    assert site_a.end(signal.SIGTERM) == 143
    assert re.search(r"node site-a stopped; it was asked to train \d+ times", site_a.output)
    assert server.end(signal.SIGTERM) == 143
    lines = server.output.splitlines()
    assert lines and all(
        re.match(r'\{"time": "\S+", "level": "\w+", "source": "\w+", "mess', x) for x in lines
    )
    assert f"run {stopped[1]} · completed" in lines[-1]


def test_strangers_and_mistakes_are_told_what_is_wrong(fed: Deployment, tmp_path: Path) -> None:
    server = fed.server()
    assert fed.done("enroll", "certs/site-a/site-a.pub", *fed.config)[0] == 0
    assert fed.done("certs", "init", "--host", "localhost", "--out", "other")[0] == 0
    dialled = ("--server", f"localhost:{fed.ports[0]}", "--data", "digits", "--name", "site-z")
    first = fed.node("site-a", "1/2")
    fed.online(first)
    a_key = str(tmp_path / "certs" / "site-a" / "site-a.key")
    cases = [
        (("enroll", "certs/site-a/site-a.pub"), 2, "this key is enrolled already, as site-a"),
        (("enroll", "certs/site-b/site-b.pub", "--name", "site-a"), 2, "another key is enrolled as site-a"),
        (("enroll", "certs/site-b/site-b.key"), 2, "that is the private key, it must stay on its node"),
        (("enroll", "nowhere.pub"), 2, "public key nowhere.pub cannot be read: No such file"),
        (("revoke", "site-aa"), 2, 'no node is enrolled as "site-aa". Did you mean "site-a"?'),
    ]
    for words, code, sentence in cases:
        left, output = fed.done(*words, *fed.config)
        assert left == code and sentence in output and "Traceback" not in output, output
    running = [
        (fed.node("site-a", "1/2"), 2, f"a node with key {a_key} is running on this machine already"),
        (fed.node("site-c", "1/2"), 5, "does not accept key"),
        (fed.start("node", *dialled, "--tls-ca", "certs/ca/ca.crt"), 5, "takes enrolled nodes only"),
        (fed.start("node", *dialled, "--tls-ca", "other/ca/ca.crt"), 5, "is not from this CA, but from CN="),
        (fed.start("node", *dialled, "--insecure"), 5, "does not speak gRPC without TLS"),
        (fed.start("server", *fed.config, "--port", "1"), 2, "is in use by another server"),
        (
            fed.start("nodes", "--tls-ca", "other/ca/ca.crt", "--server", f"127.0.0.1:{fed.ports[1]}"),
            5,
            "not from",
        ),
    ]
    for command, code, sentence in running:
        assert command.end(seconds=240) == code and sentence in command.output, command.output
        assert "Traceback" not in command.output, command.output
    assert fed.nodes() == {"site-a": "online"}

    # The same server after a renewal for another name: the old one is no longer served, sites keep their files.
    assert server.end(signal.SIGTERM) == 143
    assert fed.done("certs", "renew", "--host", "fl.example.org")[0] == 0
    server = fed.server()
    fed.until(lambda: fed.nodes() == {"site-a": "online"})
    assert first.popen.poll() is None
