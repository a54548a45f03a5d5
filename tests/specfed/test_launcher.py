"""Ports, addresses and what is handed to Flower's processes. Flower's own parser is the oracle."""

import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args
from hypothesis import given
from hypothesis import strategies as st

from common.config import NodeConfig
from common.errors import ConfigError, PortError, UnreachableError
from specfed import launcher, launcher_process
from specfed.launcher import Address, Process, node_config, require_free, reserve_port, toml

PRINTABLE = st.text(st.characters(categories=("L", "M", "N", "P", "S", "Zs")))


@given(PRINTABLE.filter(lambda text: text.isprintable() and not ("'" in text and '"' in text)))
def test_flower_reads_a_nodes_texts_back(text: str) -> None:
    config = {"name": "site-a", "data": text, "validation": 0.1, "threads": 2}
    assert parse_config_args([node_config(config)]) == config


def test_flower_reads_a_whole_node_configuration_back() -> None:
    config = NodeConfig(name="site-1", data=r"C:\my data\a='b'.npz", rows="/tmp/a b/x=1.npy").as_dict()
    assert parse_config_args([node_config(config)]) == config


@pytest.mark.parametrize("text", ["a\nb", "tab\there", """both ' and " quotes"""])
def test_texts_that_flower_could_not_read_back_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="data"):
        node_config({"data": text})


@given(st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text()))
def test_toml_values_come_back(value: bool | int | float | str) -> None:
    if value in (float("inf"), float("-inf")):
        with pytest.raises(ValueError, match="float"):
            toml(value)
        return
    try:
        str(value).encode()
    except UnicodeEncodeError:  # a lone surrogate is no text
        return
    back = tomllib.loads(f"value = {toml(value)}")["value"]
    assert back == value
    assert type(back) is type(value)


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
        monkeypatch.setattr(launcher, "_PORTS", range(port, port + 1))
        with pytest.raises(PortError), reserve_port():
            pass
        assert _reserve_elsewhere(port) == "PortError"
    assert _reserve_elsewhere(port) == str(port)


def _reserve_elsewhere(port: int) -> str:
    """What another process gets that may only have this port."""
    code = f"""
from specfed import launcher
launcher._PORTS = range({port}, {port} + 1)
try:
    with launcher.reserve_port() as port:
        print(port)
except Exception as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_port_in_use_is_never_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(launcher, "_PORTS", range(port, port + 1))
        with pytest.raises(PortError), reserve_port():
            pass
        with pytest.raises(PortError, match=f"port {port} .* in use; choose another with --port"):
            require_free(Address("127.0.0.1", port), "--port")


def test_a_host_that_is_not_ours_cannot_be_listened_on() -> None:
    with pytest.raises(ConfigError, match="not an address of this machine"):
        require_free(Address("192.0.2.1", 9092), "--port")


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        ("usage: x\nx: error: unrecognized arguments: --y\n", "x: error: unrecognized arguments: --y"),
        (
            "\x1b[92mINFO \x1b[0m:      up\nSystemExit: Port in server address 1 is already in use.\n"
            "2026-11-29T20:17:52.940Z ERROR [uvicorn.error] Application startup failed. Exiting.\n",
            "SystemExit: Port in server address 1 is already in use.",
        ),
        ("2026-11-29T20:17:52.940Z ERROR [uvicorn.error] no such file\nbye\n", "no such file"),
    ],
)
def test_the_last_words_of_a_log(tmp_path: Path, log: str, words: str) -> None:
    (tmp_path / "log").write_text(log, encoding="utf-8")
    assert launcher.last_line(tmp_path / "log") == words


def test_a_process_that_ends_by_itself_is_noticed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Error: disk is full\n", encoding="utf-8")
    popen = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    popen.wait()
    with pytest.raises(UnreachableError, match="site-1 ended by itself: Error: disk is full"):
        launcher.require_running(Process("site-1", popen, log))


@pytest.mark.parametrize(
    ("log", "parting"),
    [
        ("INFO : up\n", None),
        ("[code: 2001] SuperNode authentication is enabled. All SuperNodes must be registered.\n", "refused"),
        ("[code: 2004] Failed to activate SuperNode.\n", "refused"),
        ("INFO : SuperNode ID: 1\nINFO : SuperNode terminated gracefully.\n", "forgotten"),
    ],
)
def test_why_a_server_sent_a_node_away(tmp_path: Path, log: str, parting: str | None) -> None:
    (tmp_path / "log").write_text(log, encoding="utf-8")
    popen = subprocess.Popen([sys.executable, "-c", ""])
    popen.wait()
    assert launcher.parting(Process("site-1", popen, tmp_path / "log")) == parting


def test_the_staged_app_is_the_four_packages_and_nothing_else(tmp_path: Path) -> None:
    staged = launcher.stage_app(tmp_path / "app")
    assert {path.name for path in staged.iterdir()} == {
        "common",
        "client_app",
        "strategies",
        "server_app",
        "pyproject.toml",
        "LICENSE",
    }
    assert not [path for path in staged.rglob("*") if "__pycache__" in path.parts]


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_flower_makes_a_bundle_of_the_staged_app(tmp_path: Path) -> None:
    import io
    import zipfile

    from flwr.cli.build import build_fab_from_disk

    fab = build_fab_from_disk(launcher.stage_app(tmp_path / "app"))
    names = set(zipfile.ZipFile(io.BytesIO(fab)).namelist())
    assert {"common/config.py", "client_app/app.py", "server_app/app.py", "strategies/flower.py"} <= names
    assert not [name for name in names if name.startswith(("specfed/", "tests/"))]


def test_nothing_answers_where_nothing_listens() -> None:
    with reserve_port() as port:
        address = Address("127.0.0.1", port)
        with pytest.raises(UnreachableError, match=f"no server answers at 127.0.0.1:{port}"):
            launcher.require_fleet(address, None)
        with pytest.raises(UnreachableError, match=f"no server answers at 127.0.0.1:{port}"):
            launcher.require_control(address, None)


def test_a_stranger_on_the_control_port_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "DIAL_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = Address("127.0.0.1", stranger.getsockname()[1])
        with pytest.raises(UnreachableError, match="takes no runs without TLS"):
            launcher.require_control(address, None)
        with pytest.raises(UnreachableError, match="does not speak gRPC without TLS"):
            launcher.require_fleet(address, None)


def test_the_patched_part_of_flower_is_still_what_it_was() -> None:
    """The shorter polling replaces ``time`` in one of Flower's modules, which must use nothing else of it."""
    import re

    import flwr.supernode.start_client_internal as node

    used = set(re.findall(r"\btime\.(\w+)", Path(node.__file__).read_text(encoding="utf-8")))
    assert used == {"sleep"}


def test_a_signal_that_comes_just_after_a_process_was_buried_harms_nobody() -> None:
    gone = subprocess.Popen([sys.executable, "-IS", "-c", ""])
    gone.wait()
    launcher_process._sender(gone.pid, signal.SIGTERM)(signal.SIGTERM, None)
