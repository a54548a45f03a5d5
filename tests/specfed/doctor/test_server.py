"""A server's files, database and ports, each case made for real. No server of Flower's is started here."""

import fcntl
import shutil
import socket
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError, PortError
from specfed.addresses import Address, reserve_port
from specfed.commands import certificates
from specfed.deployment import ServerSettings, read_settings
from specfed.doctor import server
from specfed.doctor.finding import Finding
from tests.specfed.doctor.test_machine import closed, without_rights

Serve = Callable[..., Address]
Signed = Callable[[float], tuple[bytes, bytes]]


@pytest.fixture
def free() -> Iterator[dict[str, int]]:
    with reserve_port() as port, reserve_port() as control:
        yield {"port": port, "control-port": control}


def settings(made: Path, **more: Any) -> ServerSettings:
    return read_settings(ServerSettings, made / "server" / "server.toml", more)


INSECURE = {"tls-ca": "", "tls-cert": "", "tls-key": "", "insecure": True}


def by_name(found: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in found}


def test_all_is_well_before_the_first_start(
    made: Path, free: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    before = sorted(made.rglob("*"))
    found = list(server.findings(settings(made, **free)))
    assert {one.state for one in found} <= {"ok"} | {"warning"} and not [one for one in found if one.error], (
        found
    )
    names = ["versions", "certificate", "key file", "own clock", "runs", "state", "TMPDIR", "database"]
    assert [one.name for one in found] == [*names, "control port", "port", "runs port"]
    assert sorted(made.rglob("*")) == before


# --- certificates ------------------------------------------------------------------------------------


def test_a_certificate_says_whom_it_is_for(made: Path) -> None:
    found = by_name(server.certificates(settings(made)))
    assert found["certificate"].state == "ok"
    assert found["certificate"].text.endswith("for nodes that dial fl.example.org")
    assert found["key file"].state == "ok"


def test_a_certificate_for_this_machine_alone_is_a_warning(made: Path) -> None:
    certificates.renew(made, ["localhost"])
    found = by_name(server.certificates(settings(made)))["certificate"]
    assert found.state == "warning" and "--host NAME" in found.fix


@pytest.mark.parametrize(
    ("days_ago", "words", "fix"),
    [(400, "expired on", "specfed certs renew"), (-1, "not valid before", "NTP")],
)
def test_a_certificate_out_of_its_time(
    made: Path, signed: Signed, days_ago: int, words: str, fix: str
) -> None:
    (made / "server" / "server.crt").write_bytes(signed(days_ago)[1])
    shutil.copy(made / "site-a" / "ca.crt", made / "server" / "ca.crt")
    found = by_name(server.certificates(settings(made)))["certificate"]
    assert found.error is ConfigError and words in found.text and fix in found.fix


def test_a_certificate_that_ends_soon_is_a_warning(made: Path) -> None:
    certificates.renew(made, days=20)
    found = by_name(server.certificates(settings(made)))["certificate"]
    assert found.state == "warning" and "expires in" in found.text


def test_files_of_two_federations(made: Path) -> None:
    certificates.init(["fl.example.org"], made.parent / "other")
    shutil.copy(made.parent / "other" / "server" / "ca.crt", made / "server" / "ca.crt")
    shutil.copy(made.parent / "other" / "server" / "server.key", made / "server" / "server.key")
    found = by_name(server.certificates(settings(made)))
    assert "is not from this CA" in found["certificate"].text and "ca.crt" in found["certificate"].fix
    assert "does not belong to the certificate" in found["key file"].text
    assert found["certificate"].error is found["key file"].error is ConfigError


def test_a_certificate_without_the_control_hosts_name(made: Path) -> None:
    found = by_name(server.certificates(settings(made, **{"control-host": "127.0.0.9"})))["certificate"]
    assert "not for 127.0.0.9" in found.text and "--host fl.example.org --host 127.0.0.9" in found.fix


def test_missing_and_open_files(made: Path) -> None:
    (made / "server" / "server.key").chmod(0o640)
    assert by_name(server.certificates(settings(made)))["key file"].state == "warning"
    (made / "server" / "server.crt").unlink()
    found = by_name(server.certificates(settings(made)))
    assert "cannot be read" in found["certificate"].text and "cannot be read" in found["key file"].text


def test_no_encryption_is_a_warning(made: Path) -> None:
    (found,) = server.certificates(settings(made, **INSECURE))
    assert found.state == "warning" and "specfed certs init" in found.fix


# --- database ----------------------------------------------------------------------------------------


def database(folder: Path) -> Path:
    with sqlite3.connect(folder / "server.db") as link:
        link.execute("CREATE TABLE node (id INTEGER)")
    link.close()
    return folder / "server.db"


def test_a_database_stays_as_it_is(tmp_path: Path) -> None:
    assert "first start" in server.database(tmp_path / "server.db").text
    file = database(tmp_path)
    before = file.read_bytes()
    assert server.database(file).text == f"{file} can be read and written"
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]


def test_a_locked_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LOCK_SECONDS", 0.1)
    file = database(tmp_path)
    link = sqlite3.connect(file, isolation_level=None)
    link.execute("BEGIN EXCLUSIVE")
    found = server.database(file)
    link.close()
    assert found.error is ConfigError and "is locked by another process" in found.text
    assert f"'fuser {file}'" in found.fix
    assert server.database(file).state == "ok"


def test_what_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "server.db"
    file.write_text("not a database " * 100)
    assert "is no database" in server.database(file).text
    file.unlink()
    file.mkdir()
    assert "cannot be opened" in server.database(file).text


def test_a_database_that_cannot_be_written_to() -> None:
    with tempfile.TemporaryDirectory() as name:
        file = database(Path(name))
        Path(name).chmod(0o755)
        file.chmod(0o444)
        with without_rights():
            found = server.database(file)
    assert found.error is ConfigError and "cannot be written to" in found.text


# --- ports -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "state", "words"),
    [
        ({}, "ok", "from this machine alone"),
        ({"control-host": "::1"}, "ok", "from this machine alone"),
        ({"control-host": "localhost"}, "ok", "from this machine alone"),
        ({"control-host": "0.0.0.0"}, "warning", "whoever reaches it runs code on every node"),
        ({"control-host": "10.0.0.5"}, "warning", "whoever reaches it runs code on every node"),
        ({"any-node": True}, "warning", "whoever holds the CA's certificate"),
    ],
)
def test_who_reaches_the_control_port(made: Path, more: dict[str, Any], state: str, words: str) -> None:
    found = server.exposure(settings(made, **more))
    assert found.state == state and words in found.text


def test_ports_that_others_have(
    made: Path, free: dict[str, int], serve: Serve, signed: Signed, silent: Address, impatient: None
) -> None:
    stranger = serve(*signed(0))  # from the same CA, with another key
    found = by_name(
        server.ports(
            settings(made, **{"port": stranger.port, "control-port": silent.port, "host": "127.0.0.1"})
        )
    )
    for name, reason, option in (
        ("port", "by a server with another certificate", "--port"),
        ("runs port", "by what speaks no TLS", "--control-port"),
    ):
        assert found[name].error is PortError and reason in found[name].text
        assert found[name].fix.endswith(option) and "ss -ltnp" in found[name].fix
    plain = by_name(
        server.ports(settings(made, **{**free, **INSECURE, "port": stranger.port, "host": "127.0.0.1"}))
    )
    assert "by a server with TLS" in plain["port"].text


def test_ports_without_tls(made: Path, serve: Serve, silent: Address, impatient: None) -> None:
    ours, host = serve(), {"host": "127.0.0.1"}
    found = by_name(
        server.ports(settings(made, **{**INSECURE, **host, "port": ours.port, "control-port": silent.port}))
    )
    assert found["port"].text.startswith("our running server answers")
    assert "by what takes no runs" in found["runs port"].text and "nodes" not in found
    found = by_name(server.ports(settings(made, **{**INSECURE, **host, "port": silent.port})))
    assert "by what does not speak gRPC" in found["port"].text


def test_our_server_with_its_old_certificate(made: Path, free: dict[str, int], serve: Serve) -> None:
    folder = made / "server"
    running = serve((folder / "server.key").read_bytes(), (folder / "server.crt").read_bytes())
    options = {**free, "port": running.port, "host": "127.0.0.1"}
    assert by_name(server.ports(settings(made, **options)))["port"].state == "ok"
    certificates.renew(made)
    found = by_name(server.ports(settings(made, **options)))["port"]
    assert found.error is PortError and "certificate of before; restart it" in found.text


def test_addresses_that_are_not_ours(made: Path, free: dict[str, int]) -> None:
    found = by_name(server.ports(settings(made, **{**free, "host": "192.0.2.1"})))["port"]
    assert found.error is ConfigError and "is not an address of this machine" in found.text
    found = by_name(server.ports(settings(made, **{**free, "health": "nonsense"})))["health port"]
    assert found.error is ConfigError and "takes HOST:PORT" in found.text


def test_a_health_port_that_is_taken(made: Path, free: dict[str, int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        found = by_name(server.ports(settings(made, **{**free, "health": address})))["health port"]
    assert found.error is PortError and "our server does not run" in found.text


def test_a_state_folder_that_another_server_uses(made: Path, free: dict[str, int]) -> None:
    folder = made / "server" / "state"
    folder.mkdir()
    chosen = settings(made, **free)
    assert "server" not in by_name(server.ports(chosen)) and list(folder.iterdir()) == []
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = by_name(server.ports(chosen))["server"]
    assert found.error is ConfigError and "in use by another server" in found.text
    assert "server" not in by_name(server.ports(chosen))


def test_a_running_server_that_does_not_answer_is_told(
    made: Path, silent: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "NODES_SECONDS", 0.2)
    found = server.enrolled(settings(made, **{"control-port": silent.port}))
    assert found.error is not None and found.error.exit_code == 5 and "does not list its nodes" in found.text


def test_closed_folders_are_findings(free: dict[str, int]) -> None:
    with closed() as folder:
        names = {"tls-ca": "ca.crt", "tls-cert": "server.crt", "tls-key": "server.key"}
        places = {
            key: str(folder / name) for key, name in {**names, "runs": "runs", "state": "state"}.items()
        }
        found = by_name(server.findings(read_settings(ServerSettings, None, {**places, **free})))
    for name in ("certificate", "key file", "runs", "state", "database"):
        assert found[name].error is ConfigError, found[name]
    assert "cannot be opened" in found["database"].text
    assert "none of the 0 files" in found["own clock"].text
