"""Certificates as 'specfed certs' makes them, and servers on real sockets to look at."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from specfed import dial
from specfed.addresses import Address
from specfed.certs import making, reading
from specfed.doctor import connection
from specfed.launcher import probe

Serve = Callable[..., Address]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is enough on this machine for what never answers."""
    for module in (dial, probe, connection):
        monkeypatch.setattr(module, "DIAL_SECONDS", 1.0)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a gRPC server on a free port of 127.0.0.1, with TLS if it gets key and certificate."""
    with ExitStack() as stack:

        def start(*pems: bytes) -> Address:
            pool = stack.enter_context(ThreadPoolExecutor(2))
            server = grpc.server(pool)
            # All of 127.0.0.0/8 leads there, so that a name can be dialled that is in no certificate.
            port = (
                server.add_secure_port("0.0.0.0:0", grpc.ssl_server_credentials([(pems[0], pems[1])]))
                if pems
                else server.add_insecure_port("0.0.0.0:0")
            )
            server.start()
            stack.callback(lambda: server.stop(None).wait())
            return Address("127.0.0.1", port)

        yield start


@pytest.fixture
def silent() -> Iterator[Address]:
    """Something that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Address("127.0.0.1", listener.getsockname()[1])


def pems(made: Path, days_ago: float) -> tuple[bytes, bytes]:
    """Key and certificate of a server, from the CA in ``made``, as if made so many days ago for a year."""
    folder = made / "ca"
    authority = making.Authority(
        reading.read_certificates(folder / "ca.crt")[0], reading.read_signing_key(folder / "ca.key")
    )
    if days_ago > 0:
        # The CA must be older than what it signs.
        authority = making.new_authority(now=datetime.now(UTC) - timedelta(days=days_ago + 1))
        (made / "site-a" / "ca.crt").write_bytes(making.certificate_pem(authority.certificate))
    key = making.new_key()
    when = datetime.now(UTC) - timedelta(days=days_ago)
    certificate = making.new_server_certificate(authority, key, ["fl.example.org"], now=when)
    return making.key_pem(key), making.certificate_pem(certificate)


@pytest.fixture
def signed(made: Path) -> Callable[[float], tuple[bytes, bytes]]:
    """``pems`` of this test's CA."""
    return lambda days_ago: pems(made, days_ago)
