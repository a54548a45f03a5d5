"""A TLS federation by hand: server, nodes and runs, each a command of its own."""

import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.ledger import End, Header, read
from tests.commands import Command, commands


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts a command in the background; none outlives the test."""
    with commands(tmp_path) as starter:
        yield starter


def certificates(folder: Path) -> tuple[str, str, str]:
    """A CA, and a certificate of 127.0.0.1 with its key, as files."""
    from datetime import UTC, datetime, timedelta
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    keys = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("ca", "server")]
    now = datetime.now(UTC)

    def issue(subject: int, extension: x509.ExtensionType) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[subject])
            .issuer_name(names[0])
            .public_key(keys[subject].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(extension, critical=True)
        )
        return builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    ca, certificate, key = folder / "ca.pem", folder / "server.pem", folder / "server.key"
    ca.write_bytes(issue(0, x509.BasicConstraints(ca=True, path_length=None)))
    certificate.write_bytes(issue(1, x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])))
    key.write_bytes(
        keys[1].private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return str(ca), str(certificate), str(key)


@pytest.fixture
def ports() -> Iterator[tuple[str, str]]:
    from specfed.addresses import reserve_port

    with reserve_port() as fleet, reserve_port() as control:
        yield str(fleet), str(control)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_server_nodes_and_run_over_tls(
    tmp_path: Path, ports: tuple[str, str], start: Callable[..., Command]
) -> None:
    ca, certificate, key = certificates(tmp_path)
    fleet, control = ports
    tls = ["--tls-ca", ca, "--tls-cert", certificate, "--tls-key", key]
    host = ["--host", "127.0.0.1", "--port", fleet, "--control-port", control]
    server = start("server", *host, *tls, "--any-node")
    server.wait_for("run folders go to")
    stranger = start(
        "node", "--server", f"127.0.0.1:{fleet}", "--data", "digits", "--name", "x", "--insecure"
    )
    assert stranger.end() == 5
    assert "does not speak gRPC without TLS" in stranger.output
    nodes = [
        start(
            *("node", "--server", f"127.0.0.1:{fleet}", "--data", "digits", "--name", f"site-{i}"),
            *("--part", f"{i}/2", "--tls-ca", ca, "--threads", "1", "--device", "cpu"),
        )
        for i in (1, 2)
    ]
    run = start(
        *("run", "rounds=1", "min-nodes=2", "model=mlp4", "tensorboard=false", "run-name=tls"),
        *("--server", f"127.0.0.1:{control}", "--tls-ca", ca),
    )
    assert run.end(seconds=400) == 0, run.output
    (folder,) = (tmp_path / "runs").glob("*-tls-*")
    header, *_, end = read(folder / "ledger.jsonl")
    assert isinstance(header, Header)
    assert [node.name for node in header.nodes] == ["site-1", "site-2"]
    assert isinstance(end, End)
    assert end.status == "completed"
    assert "completed in" in run.output
    assert "1/1" in run.output
    assert [node.end(signal.SIGINT) for node in nodes] == [130, 130]
    assert server.end(signal.SIGTERM) == 143


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_stops_a_run_on_its_server(
    tmp_path: Path, ports: tuple[str, str], start: Callable[..., Command]
) -> None:
    """Without nodes a run waits; Ctrl-C ends it there, and the server takes the next one, which a person
    leaves, comes back to, and stops."""
    fleet, control = ports
    host = ["--host", "127.0.0.1", "--port", fleet, "--control-port", control, "--insecure"]
    server = start("server", *host)
    server.wait_for("run folders go to")
    there = ("--server", f"127.0.0.1:{control}", "--insecure")

    def done(*words: str) -> str:
        command = start(*words, *there)
        assert command.end(seconds=120) == 0, command.output
        return command.output

    assert f"no run yet on 127.0.0.1:{control}" in done("status")
    run = start("run", *there, "tensorboard=false")
    run.wait_for("· run ")
    time.sleep(3.0)
    assert run.end(signal.SIGINT) == 130
    first = re.search(r"stopping run (\w{4})", run.output)
    assert first is not None, run.output

    second = re.search(r"'specfed stop (\w{4})' ends it", done("run", "--detach", "wait-timeout=600"))
    assert second is not None
    watch = start("watch", *there)
    watch.wait_for(f"run {second[1]} on ")
    time.sleep(3.0)
    assert watch.end(signal.SIGINT) == 130
    assert f"run {second[1]} goes on: 'specfed stop {second[1]}' ends it" in watch.output
    assert states(done("status")) == {first[1]: "stopped", second[1]: "running"}
    nobody = start("stop", "", *there)
    assert nobody.end(seconds=120) == 2 and "RUN is empty" in nobody.output
    watch = start("watch", *there)
    watch.wait_for(f"run {second[1]} on ")
    assert f"run {second[1]}: stopped" in done("stop", second[1])
    assert watch.end(seconds=120) == 130 and f"run {second[1]} was stopped" in watch.output, watch.output
    ended = f"run {second[1]} has ended already: stopped"
    assert ended in done("stop", second[1])
    named = done("stop", f"2026-12-01-run-{second[1]}")
    assert ended in named and "has a mark of its own" in named
    assert states(done("status", "--limit", "1")) == {second[1]: "stopped"}
    lost = start("stop", "nowhere", *there)
    assert lost.end(seconds=120) == 2 and 'the server knows no run "nowhere"' in lost.output
    assert server.end(signal.SIGTERM) == 143


def states(output: str) -> dict[str, str]:
    """The marks and states that 'specfed status' lists."""
    return dict(re.findall(r"(?m)^(\w{4}) +(\w+) +\d{4}-\d\d-\d\d ", output))
