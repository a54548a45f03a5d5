"""What is said of an address where no server answers, or something else does."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from common.errors import UnreachableError
from specfed import dial
from specfed.addresses import Address, reserve_port
from tests.commands import in_this_process


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


def test_a_host_that_is_no_name_accepts_nothing() -> None:
    assert not dial.accepts(Address("a..b", 9092), 1.0)


BANNERS = {"SSH": b"SSH-2.0-OpenSSH_9.6\r\n", "gRPC": b"\0\0\x06\x04\0\0\0\0\0\0\x05\0\0\x40\0"}


@pytest.fixture(params=BANNERS)
def banner(request: pytest.FixtureRequest) -> Iterator[Address]:
    """Where something begins with words that are no HTTP."""

    def greet() -> None:
        with suppress(OSError):  # closed at the end
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(BANNERS[request.param])
                    connection.recv(4096)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=greet)
        thread.start()
        yield Address("127.0.0.1", listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("run", "--insecure", "--server", "{address}"), 5, "takes no runs without TLS"),
        (("nodes", "--insecure", "--server", "{address}"), 5, "takes no runs without TLS"),
        (
            ("doctor", "server", "--insecure", "--control-port", "{port}"),
            6,
            "is in use, by what takes no runs",
        ),
    ],
)
def test_what_speaks_no_http_on_the_control_port_is_told_apart(
    banner: Address,
    words: tuple[str, ...],
    code: int,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(dial, "DIAL_SECONDS", 2.0)
    with in_this_process(tmp_path, monkeypatch) as command:
        assert command(*(word.format(address=banner, port=banner.port) for word in words)) == code
    assert sentence in "".join(capsys.readouterr())
