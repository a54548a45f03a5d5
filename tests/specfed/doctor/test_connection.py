"""What stands between a node and its server, each case on real sockets."""

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from specfed.addresses import Address
from specfed.commands import certificates
from specfed.doctor import connection
from specfed.doctor.finding import Finding
from tests.commands import in_this_process

Serve = Callable[..., Address]
Signed = Callable[[float], tuple[bytes, bytes]]


def walked(address: Address, ca: Path | None) -> tuple[list[str], Finding, bool]:
    """Names of the layers that were looked at, the last finding, and whether all stand."""
    way = connection.way(address, ca)
    found: list[Finding] = []
    while True:
        try:
            found.append(next(way))
        except StopIteration as end:
            return [finding.name for finding in found], found[-1], end.value


def test_all_is_well_with_tls(made: Path, serve: Serve, signed: Signed) -> None:
    names, last, stands = walked(serve(*signed(0)), made / "site-a" / "ca.crt")
    assert names == ["name", "port", "TLS", "gRPC"] and last.state == "ok" and stands


def test_all_is_well_without_tls_but_for_a_warning(serve: Serve) -> None:
    address = serve()
    assert walked(address, None)[2]
    assert connection.encrypts(address, None).state == "warning"


def refused(address: Address, ca: Path | None, layer: str) -> Finding:
    """The problem of this layer, after which nothing else is looked at; a node exits with 5 too."""
    names, last, stands = walked(address, ca)
    assert names[-1] == layer and last.state == "problem" and not stands
    assert last.error is not None and last.error.exit_code == 5 and last.fix
    return last


def test_a_name_that_does_not_resolve(impatient: None) -> None:
    found = refused(Address("server.invalid", 9092), None, "name")
    assert "server.invalid cannot be resolved" in found.text


def test_a_name_that_is_no_name() -> None:
    assert "cannot be resolved" in refused(Address("a" * 70, 9092), None, "name").text


def test_a_closed_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
    found = refused(address, None, "port")
    assert f"nothing listens at {address}" in found.text and "start the server" in found.fix


def test_a_port_that_answers_nothing(impatient: None) -> None:
    """A listener whose queue is full drops what comes, as a firewall does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = Address("127.0.0.1", listener.getsockname()[1])
        waiting = [socket.socket() for _ in range(4)]
        try:
            for one in waiting:
                one.setblocking(False)
                one.connect_ex((address.host, address.port))
            found = refused(address, None, "port")
        finally:
            for one in waiting:
                one.close()
    assert "no answer within 1 s" in found.text and "firewall" in found.fix


def test_tls_against_a_server_without(made: Path, serve: Serve, impatient: None) -> None:
    found = refused(serve(), made / "site-a" / "ca.crt", "TLS")
    assert "the server speaks without TLS" in found.text and "--insecure" in found.fix


def test_no_tls_against_a_server_with(made: Path, serve: Serve, signed: Signed) -> None:
    found = refused(serve(*signed(0)), None, "TLS")
    assert "speaks without TLS" in found.text and "speaks TLS" in found.text and "tls-ca" in found.fix


def test_something_else_listens(made: Path, silent: Address, impatient: None) -> None:
    assert "no server of ours" in refused(silent, made / "site-a" / "ca.crt", "TLS").text
    assert "does not speak gRPC" in refused(silent, None, "gRPC").text


def test_a_ca_of_another_federation(made: Path, serve: Serve, signed: Signed) -> None:
    certificates.init(["fl.example.org"], made.parent / "other")
    found = refused(serve(*signed(0)), made.parent / "other" / "ca" / "ca.crt", "TLS")
    assert "is not from this CA, but from CN=specfed CA" in found.text and "ca.crt" in found.fix


def test_a_name_that_is_not_in_the_certificate(made: Path, serve: Serve, signed: Signed) -> None:
    port = serve(*signed(0)).port
    found = refused(Address("127.0.0.2", port), made / "site-a" / "ca.crt", "TLS")
    assert "holds for fl.example.org, localhost, 127.0.0.1, ::1, but not for 127.0.0.2" in found.text
    assert "'specfed certs renew --host fl.example.org --host 127.0.0.2'" in found.fix


def test_an_expired_certificate(made: Path, serve: Serve, signed: Signed) -> None:
    found = refused(serve(*signed(400)), made / "site-a" / "ca.crt", "TLS")
    assert "expired on" in found.text and "specfed certs renew" in found.fix


def test_a_certificate_of_tomorrow_speaks_of_the_clock(made: Path, serve: Serve, signed: Signed) -> None:
    found = refused(serve(*signed(-1)), made / "site-a" / "ca.crt", "TLS")
    assert "not valid before" in found.text and "clock" in found.text and "NTP" in found.fix


def test_a_certificate_that_expires_soon_is_a_warning(made: Path, serve: Serve, signed: Signed) -> None:
    address = serve(*signed(355))
    found = connection.encrypts(address, made / "site-a" / "ca.crt")
    assert found.state == "warning" and "expires in" in found.text and "renew" in found.fix


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_where_a_name_leads_is_shown(host: str) -> None:
    assert "127.0.0.1 here" in connection.resolves(Address(host, 1)).text


def test_a_proxy_on_the_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    address = Address("fl.example.org", 9092)
    assert connection.proxied(address) is None
    monkeypatch.setenv("http_proxy", "http://user:secret@proxy:3128")
    found = connection.proxied(address)
    assert found is not None and found.state == "warning"
    assert (
        "http_proxy" in found.text and "secret" not in found.text and "no_proxy=fl.example.org" in found.fix
    )
    monkeypatch.setenv("no_proxy", "localhost,.example.org")
    assert connection.proxied(address) is None
    monkeypatch.setenv("no_proxy", "*")
    assert connection.proxied(address) is not None  # gRPC knows no star


def test_loopback_is_dialled_past_a_proxy(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # nothing is there
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    words = ("doctor", "node", "--insecure", "--server", str(serve()), "--data", "digits", "--name", "site-a")
    with in_this_process(tmp_path, monkeypatch) as command:
        command(*words)
    out = capsys.readouterr().out
    assert re.search(r"(?m)^ok +gRPC ", out) and "proxy" not in out, out
