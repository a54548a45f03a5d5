"""What 'specfed doctor' says on both ends of a real federation. Real processes throughout."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specfed.addresses import Address
from specfed.certs import reading
from specfed.doctor import clock
from specfed.launcher import probe
from tests.commands import in_this_process
from tests.deployment import Deployment, deployment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Deployment]:
    with deployment(tmp_path) as fed:
        yield fed


Asked = Callable[..., tuple[int, dict[str, dict[str, Any]]]]


@pytest.fixture
def asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Asked]:
    """Exit code and findings by name of 'specfed doctor'."""
    with in_this_process(tmp_path, monkeypatch) as command:

        def ask(*words: str) -> tuple[int, dict[str, dict[str, Any]]]:
            capsys.readouterr()
            code = command("doctor", *words, "--json")
            told = json.loads(capsys.readouterr().out)
            assert told["exit-code"] == code
            return code, {finding["name"]: finding for finding in told["findings"]}

        yield ask


def test_both_ends_of_a_federation(fed: Deployment, asked: Asked, tmp_path: Path) -> None:
    site = tmp_path / "certs" / "site-a"
    node = ("node", "--config", str(site / "node.toml"), "--data", "digits")

    # Before the server runs.
    code, found = asked(*fed.config)
    assert code == 0 and "no server runs there" in found["port"]["text"], found
    code, found = asked(*node)
    assert code == 5 and "nothing listens at localhost" in found["port"]["text"], found

    server = fed.server()
    key = str(site / "site-a.key")
    code, found = asked(*fed.config)
    assert code == 0 and "our running server answers" in found["port"]["text"], found
    assert "our running server answers" in found["runs port"]["text"]
    assert found["nodes"]["state"] == "warning" and "nobody can take part" in found["nodes"]["text"]

    # The key is not enrolled, is enrolled, and was revoked; being asked leaves no trace at the server.
    code, found = asked(*node)
    assert code == 5 and f"{key} is not enrolled at localhost" in found["key"]["text"], found
    assert fed.done("enroll", "certs/site-a/site-a.pub", *fed.config)[0] == 0
    code, output = fed.done("doctor", *node)
    assert code == 0 and output.endswith("node: all is well\n"), output
    assert fed.nodes() == {"site-a": "never seen"}

    # A node whose clock goes wrong: its requests are signed with that time.
    skewed_clocks(Address("localhost", fed.ports[0]), site)

    # A running node is not disturbed, and is counted.
    running = fed.node("site-a", "1/1")
    fed.online(running)
    assert asked(*node)[0] == 0
    assert asked(*fed.config)[1]["nodes"]["text"] == "1 known, 1 online"
    assert fed.nodes() == {"site-a": "online"} and running.popen.poll() is None
    assert running.end(signal.SIGTERM) == 143

    # The port of the runs, dialled by mistake; the state folder, used from other ports.
    code, found = asked(*node, "--server", f"localhost:{fed.ports[1]}")
    assert code == 5 and "not its --control-port" in found["gRPC"]["fix"], found
    code, found = asked("server", *fed.config, "--port", str(fed.ports[2] + 1))
    assert code == 2 and "is in use by another server" in found["server"]["text"], found

    assert fed.done("revoke", "site-a", *fed.config)[0] == 0
    code, found = asked(*node)
    assert code == 5 and "or was revoked there" in found["key"]["text"], found
    assert server.end(signal.SIGTERM) == 143


def skewed_clocks(address: Address, site: Path) -> None:
    early, late = probe.EARLY, probe.LATE
    key = reading.read_node_key(site / "site-a.key")
    with probe.fleet(address, (site / "ca.crt").read_bytes()) as channel:
        for wrong, answer, state, words in (
            (20.0, "clock", "problem", "20 s ahead of the server's"),
            (-60.0, "enrolled", "warning", "60 s behind the server's"),
            (-400.0, "clock", "problem", "400 s behind the server's"),
            (-7200.0, "clock", "problem", "7200 s behind the server's"),
        ):
            assert probe.ask(channel, key, wrong) == answer
            ahead = clock.difference(
                lambda shift, wrong=wrong: probe.ask(channel, key, wrong + shift) != "clock",  # type: ignore[misc]
                early,
                late,
            )
            assert ahead is not None and abs(ahead + wrong) < 1.5
            found = clock.compared(round(ahead), early, late)
            assert found.state == state
            assert words in found.text or abs(ahead + wrong) > 0.5, found


def test_without_encryption(fed: Deployment, asked: Asked) -> None:
    address = f"127.0.0.1:{fed.ports[0]}"
    options = ("--insecure", "--port", str(fed.ports[0]), "--control-port", str(fed.ports[1]))
    server = fed.start("server", *options)
    server.wait_for("run folders go to")
    node = ("node", "--insecure", "--server", address, "--data", "digits", "--name", "site-a")
    code, found = asked(*node)
    assert code == 0 and found["clock"]["state"] == found["Flower"]["state"] == "ok", found
    assert {name for name, one in found.items() if one["state"] == "warning"} == {"TLS"}
    code, found = asked("server", *options)
    assert code == 0 and "our running server answers" in found["runs port"]["text"], found
    assert found["nodes"]["text"] == "0 known, 0 online" and found["nodes"]["state"] == "ok"

    # With TLS against it, and the other way round on the same port.
    code, found = asked("node", "--config", "certs/site-a/node.toml", "--server", address)
    assert code == 2 and "the server speaks without TLS" in found["TLS"]["text"], found
    assert found["data"]["text"] == "no data are named"
    code, found = asked(*fed.config)
    assert code == 6 and "by what speaks no TLS" in found["port"]["text"], found
    assert server.end(signal.SIGTERM) == 143


def test_mistakes_before_anything_is_checked(fed: Deployment, tmp_path: Path) -> None:
    (tmp_path / "neither.toml").write_text("colour = 1\n")
    for words, code, sentence in (
        (("doctor",), 2, "give node.toml or server.toml"),
        (("doctor", "--config", "nowhere.toml"), 2, "there is no configuration file"),
        (("doctor", "--config", "neither.toml"), 2, "may be a node's or a server's"),
        (("doctor", "--json", "node"), 2, "give these options after 'doctor node'"),
        (("doctor", "node"), 2, '"server" is missing on the command line; give --server'),
        (("doctor", "server", "--prot", "1"), 2, "--port"),
    ):
        left, output = fed.done(*words)
        assert left == code and sentence in output and "Traceback" not in output, output
