"""A federation as its operators start it: certificates, files and commands in one folder."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from common.ledger import ClientRecord, Record, read
from specfed.addresses import reserve_port
from tests.commands import Command, commands

SITES = ("site-a", "site-b", "site-c")


class Deployment:
    """Certificates, configuration files and ports of one federation in a folder."""

    def __init__(self, folder: Path, start: Callable[..., Command], ports: list[int]) -> None:
        self.folder, self.start, self.ports = folder, start, ports
        host = ["--host", "localhost", "--out", "certs", "--port", str(ports[0])]
        assert self.done("certs", "init", *host)[0] == 0
        assert self.done("certs", "issue", *SITES)[0] == 0
        file = folder / "certs" / "server" / "server.toml"
        file.write_text(re.sub(r"(?m)^control-port = \d+", f"control-port = {ports[1]}", file.read_text()))
        self.config = ("--config", str(file))

    def done(self, *words: str) -> tuple[int, str]:
        """A command at its end: exit code and output."""
        command = self.start(*words)
        return command.end(seconds=240), command.output

    def server(self, *more: str) -> Command:
        server = self.start("server", *self.config, "--health", f"127.0.0.1:{self.ports[2]}", *more)
        server.wait_for("run folders go to")
        return server

    def node(self, site: str, part: str, *more: str) -> Command:
        file = str(self.folder / "certs" / site / "node.toml")
        return self.start("node", "--config", file, "--data", "digits", "--part", part, *more)

    def online(self, *nodes: Command) -> None:
        for node in nodes:
            node.wait_for("SuperNode ID")

    def nodes(self) -> dict[str, str]:
        """Names and states, as 'specfed nodes' lists them."""
        code, output = self.done("nodes", *self.config)
        assert code == 0, output
        return dict(re.findall(r"(?m)^(site-\w) +(\w+(?: seen)?) ", output))

    def ledger(self, run: str) -> list[Record]:
        return [record for file in self.folder.glob(f"runs/*-{run}-*/ledger.jsonl") for record in read(file)]

    def rounds(self, run: str) -> dict[int, list[str]]:
        """Who took part in the rounds so far."""
        told = [record for record in self.ledger(run) if isinstance(record, ClientRecord)]
        return {r.round: [other.client for other in told if other.round == r.round] for r in told}

    def until(self, holds: Callable[[], bool], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, self.rounds("long")
            time.sleep(0.3)


@contextmanager
def deployment(folder: Path) -> Iterator[Deployment]:
    """A deployment on free ports; no command of it outlives the exit."""
    with ExitStack() as stack:
        ports = [stack.enter_context(reserve_port()) for _ in range(3)]
        yield Deployment(folder, stack.enter_context(commands(folder)), ports)
