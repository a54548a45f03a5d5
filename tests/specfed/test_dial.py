"""What is said of an address where no server answers, or something else does."""

import socket

import pytest

from common.errors import UnreachableError
from specfed import dial
from specfed.addresses import Address, reserve_port


def test_nothing_answers_where_nothing_listens() -> None:
    with reserve_port() as port:
        address = Address("127.0.0.1", port)
        with pytest.raises(UnreachableError, match=f"no server answers at 127.0.0.1:{port}"):
            dial.require_fleet(address, None)
        with pytest.raises(UnreachableError, match=f"no server answers at 127.0.0.1:{port}"):
            dial.require_control(address, None)


def test_a_stranger_on_the_control_port_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "DIAL_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = Address("127.0.0.1", stranger.getsockname()[1])
        with pytest.raises(UnreachableError, match="takes no runs without TLS"):
            dial.require_control(address, None)
        with pytest.raises(UnreachableError, match="does not speak gRPC without TLS"):
            dial.require_fleet(address, None)
