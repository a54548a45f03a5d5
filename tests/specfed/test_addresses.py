"""What an address is, and which ports are free."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from common.errors import ConfigError, PortError
from specfed import addresses
from specfed.addresses import Address, require_free, reserve_port, unproxied


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9092", "127.0.0.1", 9092),
        ("fl.example.org:1", "fl.example.org", 1),
        ("[::1]:80", "::1", 80),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert address == Address(host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":80", "host:0", "host:65536", "http://host:80", "::1:80"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        Address.parse(text)


def test_a_server_that_binds_everywhere_is_dialled_on_loopback() -> None:
    assert Address("0.0.0.0", 1).local() == Address("127.0.0.1", 1)
    assert Address("10.0.0.7", 1).local() == Address("10.0.0.7", 1)


def test_no_reservation_gets_the_port_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with reserve_port() as port:
        monkeypatch.setattr(addresses, "_PORTS", range(port, port + 1))
        with pytest.raises(PortError), reserve_port():
            pass
        assert _reserve_elsewhere(port) == "PortError"
    assert _reserve_elsewhere(port) == str(port)


def _reserve_elsewhere(port: int) -> str:
    """What another process gets that may only have this port."""
    code = f"""
from specfed import addresses
addresses._PORTS = range({port}, {port} + 1)
try:
    with addresses.reserve_port() as port:
        print(port)
except Exception as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_port_in_use_is_never_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(addresses, "_PORTS", range(port, port + 1))
        with pytest.raises(PortError), reserve_port():
            pass
        with pytest.raises(PortError, match=f"port {port} .* in use; choose another with --port"):
            require_free(Address("127.0.0.1", port), "--port")


def test_a_folder_of_reservations_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"specfed-ports-{os.getuid()}"
    folder.touch()
    with pytest.raises(ConfigError, match=f"{folder} cannot be written: .*; remove it"), reserve_port():
        pass


def test_a_host_that_is_not_ours_cannot_be_listened_on() -> None:
    with pytest.raises(ConfigError, match="not an address of this machine"):
        require_free(Address("192.0.2.1", 9092), "--port")
    with pytest.raises(ConfigError, match=r'host "a\.\.b" cannot be resolved'):
        require_free(Address("a..b", 9092), "--port")


@pytest.mark.parametrize(
    ("environment", "lower", "upper"),
    [
        ({}, "127.0.0.1,localhost,::1", "127.0.0.1,localhost,::1"),
        ({"NO_PROXY": "a.org, ::1"}, "a.org,::1,127.0.0.1,localhost", "a.org,::1,127.0.0.1,localhost"),
        (
            {"no_proxy": "a.org", "NO_PROXY": "b.org"},
            "a.org,127.0.0.1,localhost,::1",
            "b.org,127.0.0.1,localhost,::1",
        ),
    ],
)
def test_loopback_is_spared_the_proxy_beside_what_was(
    environment: dict[str, str], lower: str, upper: str
) -> None:
    assert unproxied(environment) == {"no_proxy": lower, "NO_PROXY": upper}


def test_a_star_is_kept_for_those_who_know_it_and_grpc_gets_names() -> None:
    spared = unproxied({"no_proxy": "*"})
    assert spared == {"no_proxy": "*", "NO_PROXY": "*", "no_grpc_proxy": "127.0.0.1,localhost,::1"}


def test_what_grpc_alone_reads_is_spared_too() -> None:
    assert unproxied({"no_grpc_proxy": "a.org"})["no_grpc_proxy"] == "a.org,127.0.0.1,localhost,::1"
