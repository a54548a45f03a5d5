"""What Docker is told of a container's health, over real gRPC."""

from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from specfed.addresses import reserve_port
from specfed.health import main

States = HealthCheckResponse.ServingStatus


@pytest.fixture
def port() -> Iterator[int]:
    with reserve_port() as port:
        yield port


@pytest.mark.parametrize(("state", "code"), [(States.SERVING, 0), (States.NOT_SERVING, 1)])
def test_exit_code_is_the_state(port: int, state: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    servicer = health.HealthServicer()
    servicer.set("", state)
    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    monkeypatch.setenv("SPECFED_HEALTH", f"127.0.0.1:{port}")
    try:
        assert main() == code
    finally:
        server.stop(None).wait()


def test_nobody_there_is_not_healthy(
    port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECFED_HEALTH", f"127.0.0.1:{port}")
    assert main() == 1
    assert capsys.readouterr().out == f"nothing serves at 127.0.0.1:{port}\n"


def test_no_address_is_not_healthy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SPECFED_HEALTH", raising=False)
    assert main() == 1
    assert "SPECFED_HEALTH" in capsys.readouterr().err
