"""A federation over real networks: its own host for the server and each site, NAT, a bad line, a cut.

The sites do what the site operator's page says, word for word; only the server's address, the site's name and
its data are filled in. Needs root on Linux.
"""

import re
import shlex
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from common.ledger import ClientRecord, End, Header, Record, RoundRecord, read
from common.policy import Policy
from tests.commands import Command, commands
from tests.networks import Host, Link, networks

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(900)]

PAGE = (Path(__file__).parents[2] / "docs" / "site-operator.md").read_text(encoding="utf-8")
SERVER, FLEET, CONTROL, HEALTH, OTHER = "10.77.0.2", 9092, 8000, 9095, 9999
SITES = ("site-a", "site-b", "site-c")
RUN = ("model=mlp4", "tensorboard=false", "threads=1", "min-nodes=3", "eval-data=digits", "round-timeout=60")
ONE_WAY, LOSS = 0.1, 0.01  # seconds and share of the packets, on the bad line
CUT_SECONDS = 30.0


def blocks(language: str) -> list[str]:
    """The page's blocks in that language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def lines(*words: str, site: str = "site-a") -> list[str]:
    """The page's command lines that begin so, for this site."""
    told = [line for block in blocks("shell") for line in block.splitlines()]
    found = [line for line in told if line.startswith(" ".join(words))]
    assert found, words
    return [line.replace("site-a", site).replace("fl.example.org", SERVER) for line in found]


@dataclass
class Site:
    """A site's machine: its network, its disk, its node."""

    name: str
    host: Host
    folder: Path
    start: Callable[..., Command]
    running: list[Command] = field(default_factory=list)

    def begin(self, *words: str) -> Command:
        """The page's one ``specfed`` command that begins so, started on this machine."""
        (line,) = lines("specfed", *words, site=self.name)
        return self.start(*shlex.split(line)[1:], at=self.folder, inside=self.host.inside)

    def finish(self, *words: str) -> str:
        command = self.begin(*words)
        assert command.end(seconds=400) == 0, command.output
        return command.output

    def settings(self, **more: str) -> None:
        with (self.folder / self.name / "node.toml").open("a", encoding="utf-8") as file:
            file.writelines(f'{key} = "{value}"\n' for key, value in more.items())

    @property
    def node(self) -> Command:
        return self.running[-1]


@dataclass
class World:
    """The server's machine, and those of the sites."""

    server: Host
    folder: Path
    start: Callable[..., Command]
    sites: dict[str, Site]
    uplink: Link  # of the network that site-c is hidden in
    config: tuple[str, ...] = ("--config", "certs/server/server.toml")

    def begin(self, *words: str) -> Command:
        return self.start(*words, at=self.folder, inside=self.server.inside)

    def finish(self, *words: str) -> str:
        command = self.begin(*words)
        assert command.end(seconds=400) == 0, command.output
        return command.output

    def ledger(self, run: str) -> list[Record]:
        (file,) = self.folder.glob(f"runs/*-{run}-*/ledger.jsonl")
        return list(read(file))

    def ends(self, run: str) -> tuple[Header, End]:
        first, *_, last = self.ledger(run)
        assert isinstance(first, Header) and isinstance(last, End)
        return first, last


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server and three sites that are online."""
    with ExitStack() as stack:
        net = stack.enter_context(networks())
        internet, server = net.host("internet"), net.host("server")
        hosts = {name: net.host(name) for name in SITES}
        gate = net.host("gate")
        for router in (internet, gate):
            router.forward()
        net.link(internet, server, "server", "10.77.0")
        net.link(internet, hosts["site-a"], "site-a", "10.77.1")
        net.bad_link(internet, hosts["site-b"], "site-b", "10.77.2", ONE_WAY, LOSS)
        uplink = net.link(internet, gate, "gate", "10.77.3")
        gate.hide("gate")
        net.link(gate, hosts["site-c"], "site-c", "192.168.7")

        start = stack.enter_context(commands(tmp_path_factory.mktemp("nobody")))
        sites = {name: Site(name, host, tmp_path_factory.mktemp(name), start) for name, host in hosts.items()}
        made = World(server, tmp_path_factory.mktemp("server"), start, sites, uplink)
        _enrol(made)
        for number, site in enumerate(sites.values(), start=1):
            site.settings(data="digits", part=f"{number}/3")
            if number == 1:
                site.finish("doctor")
            site.running.append(site.begin("node"))
        for site in sites.values():
            site.node.wait_for("SuperNode ID", seconds=300)
        yield made


def _enrol(world: World) -> None:
    """Keys, bundles and the server, until it takes the sites: site-b makes its key itself."""
    own = world.sites["site-b"]
    own.finish("certs key")
    (world.folder / "site-b.pub").write_bytes((own.folder / "site-b" / "site-b.pub").read_bytes())
    world.finish("certs", "init", "--host", SERVER)
    world.finish("certs", "issue", "site-a", "site-c")
    world.finish("certs", "issue", "site-b", "--public-key", "site-b.pub")
    server = world.begin("server", *world.config, "--health", f"127.0.0.1:{HEALTH}")
    server.wait_for("run folders go to", seconds=300)
    for name, site in world.sites.items():
        (site.folder / name).mkdir(exist_ok=True)
        for file in (world.folder / "certs" / name).iterdir():
            file.rename(site.folder / name / file.name)
        told = world.finish("enroll", str(site.folder / name / f"{name}.pub"), *world.config)
        key = re.findall(r"SHA256:\S+", told)
        assert key == re.findall(r"SHA256:\S+", site.finish("certs show"))
    first = world.sites["site-a"]
    for line in lines("iptables"):
        first.host.run(*shlex.split(line))
    policy, how = blocks("toml")[1:]
    app = first.finish("app-hash").strip()
    (first.folder / "site-a" / "policy.toml").write_text(policy.replace("APP-HASH", app), encoding="utf-8")
    first.settings(**tomllib.loads(how))


def test_the_page_is_what_this_file_runs() -> None:
    told = [line for block in blocks("shell") for line in block.splitlines()]
    ours = (
        "specfed certs key",
        "specfed certs show",
        "specfed app-hash",
        "specfed doctor",
        "specfed node",
        "iptables",
    )
    assert [line for line in told if not line.startswith(ours)] == []
    data, policy, how = (tomllib.loads(block) for block in blocks("toml"))
    assert list(data) == ["data"] and how == {"policy": "policy.toml"}
    read_back = Policy.read({**policy, "apps": ["0" * 64]}, "the page")
    assert read_back.max_rounds == 500 and "train-loss" in read_back.metrics


def test_nodes_reach_one_port_and_nobody_reaches_them(world: World) -> None:
    open_at = {port for _, port in world.server.listening()}
    assert {FLEET, CONTROL, HEALTH} <= open_at
    for name, site in world.sites.items():
        assert {port for port in open_at if site.host.reaches(SERVER, port)} == {FLEET}, name
        inside = site.host.listening()
        assert inside and {address for address, _ in inside} == {"127.0.0.1"}, name

    # Not for want of a listener: NAT hides site-c, and what the page says of a firewall closes site-a.
    hidden = world.sites["site-c"].host
    with hidden.listens(OTHER):
        assert hidden.reaches("192.168.7.2", OTHER)
        assert not world.server.reaches("192.168.7.2", OTHER) and not world.server.reaches("10.77.3.2", OTHER)
    with world.server.listens(OTHER):
        assert hidden.reaches(SERVER, OTHER)
        assert not world.sites["site-a"].host.reaches(SERVER, OTHER)

    # The bad line is as bad as it should be: there and back once for a connection.
    took = world.sites["site-b"].host.dial(SERVER, FLEET, patience=20)
    assert took is not None and took >= 2 * ONE_WAY


def test_a_run_over_nat_and_a_bad_line_completes(world: World) -> None:
    output = world.finish("run", *world.config, *RUN, "rounds=3", "run-name=calm")
    header, end = world.ends("calm")
    assert end.status == "completed" and end.rounds == 3, output
    assert [node.name for node in header.nodes] == list(SITES)
    told = [(r.round, r.client, r.status) for r in world.ledger("calm") if isinstance(r, ClientRecord)]
    assert told == [(number, site, "accepted") for number in (1, 2, 3) for site in SITES]


def test_a_node_whose_line_was_cut_comes_back_by_itself(world: World) -> None:
    site = world.sites["site-c"]
    asked = site.node.output.count("Receiving: train")
    run = world.begin("run", *world.config, *RUN, "rounds=6", "run-name=cut", "local-epochs=30")
    _until(lambda: site.node.output.count("Receiving: train") > asked + 1, run)
    world.uplink.cut()
    # Packets that are under way may still be delivered: once in seven runs a last connection came through.
    _until(lambda: not site.host.reaches(SERVER, FLEET), run, seconds=10)
    time.sleep(CUT_SECONDS)
    world.uplink.restore()
    assert run.end(seconds=600) == 0, run.output

    assert site.node.popen.poll() is None, site.node.output
    _, end = world.ends("cut")
    assert end.status in ("completed", "completed-degraded") and end.rounds == 6
    records = world.ledger("cut")
    (cut,) = [r for r in records if isinstance(r, RoundRecord) and r.round == 2]
    assert cut.seconds > CUT_SECONDS and cut.moved  # it was in the middle of this round
    accepted = {
        (r.round, r.client) for r in records if isinstance(r, ClientRecord) and r.status == "accepted"
    }
    left_out = {(number, name) for number in range(1, 7) for name in SITES} - accepted
    # What it misses depends on what was under way: its reply, its last heartbeat, and TCP, which asks an old
    # connection again only 51 s after the cut. A round takes 10 s; it is back by the fifth at the latest.
    assert left_out <= {(number, "site-c") for number in (2, 3, 4)}


def _until(holds: Callable[[], bool], run: Command, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert run.popen.poll() is None and time.monotonic() < deadline, run.output
        time.sleep(0.1)
