"""What a round costs beside the training: this product's deployment against stock Flower's, on one machine.

``python -m benchmarks.deployment [REPEATS]`` starts a server and three nodes of each, both with TLS, enrolled
keys and a state file, measures all of them idle, and then lets them run in turn.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks import measure
from common.config import RunConfig, Value
from common.ledger import ClientRecord, Record, RoundRecord, read
from specfed.addresses import LOOPBACK, Address, reserve_port
from specfed.certs import reading
from specfed.launcher import app_files, children, registry, runs
from specfed.launcher.children import Process
from specfed.launcher.runs import Control
from specfed.launcher.start import Server, ServerTls, wait_ready

SITES = ("site-1", "site-2", "site-3")
ROUNDS = 4
IDLE_SECONDS = 30.0
SETTLE_SECONDS = 170.0  # until all that grows with idle time has grown
START_SECONDS = 180.0
TARGETS = {"ours / stock": 0.5, "ours / stock, warm": 1 / 3, "idle percent of one core": 3.0}
STOCK_APP = Path(__file__).parent / "stock"
ROLES = {  # what stands in a command line -> what the process does; the first that fits
    "flower-superexec": "superexec",
    "launcher.naps": "superexec",
    "launcher.supervisor warm": "warm start",
    "launcher.supervisor superlink": "superlink",
    "launcher.supervisor supernode": "supernode",
    "flower-superlink": "superlink",
    "flower-supernode": "supernode",
    "specfed.cli": "specfed",
}


@dataclass(frozen=True)
class Round:
    """A round that ended, in seconds."""

    end: float  # by a clock that goes on from round to round
    work: float  # of the slowest node


@dataclass(frozen=True)
class Deployment:
    """A running server and its nodes."""

    control: Control
    folder: Path
    processes: Sequence[Process]


@dataclass(frozen=True)
class Places:
    """Where a deployment has its files and ports."""

    folder: Path
    fleet: int
    control: int
    runtimes: Mapping[str, int]  # of the nodes' own processes

    @property
    def ca(self) -> Path:
        """The certificate of the CA."""
        return self.folder / "certs" / "ca" / "ca.crt"


@dataclass(frozen=True)
class Kind:
    """How the processes of a deployment are started."""

    server: Callable[[Places], list[str]]
    node: Callable[[Places, str], list[str]]


def main(repeats: int) -> None:
    """Measure and save the result."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as stack:
        folder = Path(name)
        ours = stack.enter_context(deployment(folder / "ours", OURS))
        stock = stack.enter_context(deployment(folder / "stock", STOCK))
        time.sleep(SETTLE_SECONDS)
        idle = of_idle({"ours": ours, "stock": stock}, IDLE_SECONDS)
        our_app, stock_app = app_files.stage_app(folder / "app"), stage_stock(folder / "stock-app")
        variants: dict[str, Callable[[], float]] = {
            "ours": lambda: median(overheads(run_ours(ours, our_app))),
            "stock": lambda: median(overheads(run_stock(stock, stock_app, True))),
            "stock-train-only": lambda: median(overheads(run_stock(stock, stock_app, False))),
        }
        seconds = measure.in_turn(variants, repeats)
    measure.save(
        "deployment",
        {
            "task": f"digits over {len(SITES)} nodes on loopback, MLP 64-200-100-50-10, one epoch, "
            f"batches of 32, {ROUNDS} rounds; TLS, enrolled keys, a state file",
            "rounds": ROUNDS,
            "repeats": repeats,
            "overhead-seconds-a-round": {name: round(value, 2) for name, value in seconds.items()},
            "ratio": round(seconds["ours"] / seconds["stock"], 3),
            "ratio-train-only": round(seconds["ours"] / seconds["stock-train-only"], 3),
            "idle": idle,
            "load-average": os.getloadavg()[1],
            "targets": TARGETS,
        },
    )


# --- rounds ------------------------------------------------------------------------------------------


def overheads(rounds: Sequence[Round]) -> list[float]:
    """Seconds of each round after the first that were not the slowest node's own work."""
    return [this.end - last.end - this.work for last, this in pairwise(rounds)]


def rounds_of_ledger(records: Sequence[Record]) -> list[Round]:
    """The rounds of one of our runs."""
    work: dict[int, float] = {}
    for record in records:
        if isinstance(record, ClientRecord):
            work[record.round] = max(work.get(record.round, 0.0), record.seconds or 0.0)
    return [Round(r.elapsed, work[r.round]) for r in records if isinstance(r, RoundRecord)]


def rounds_of_log(lines: Sequence[str]) -> list[Round]:
    """The rounds that the stock app tells of in its run's log."""
    told = [json.loads(line.partition("timed ")[2]) for line in lines if line.startswith("timed ")]
    return [Round(one["at"], one["node-seconds"]) for one in told if one["round"] > 0]


def run_ours(deployed: Deployment, app: Path) -> list[Round]:
    """One run with this product's apps."""
    config = RunConfig(rounds=ROUNDS, model="mlp4", min_nodes=len(SITES), threads=1, tensorboard=False)
    before = set(deployed.folder.glob("runs/*/ledger.jsonl"))
    _finished(deployed, app, config.as_dict())
    (ledger,) = set(deployed.folder.glob("runs/*/ledger.jsonl")) - before
    return rounds_of_ledger(list(read(ledger)))


def run_stock(deployed: Deployment, app: Path, evaluate: bool) -> list[Round]:
    """One run with the ordinary app, with or without evaluation on the nodes."""
    config: dict[str, Value] = {"rounds": ROUNDS, "nodes": len(SITES), "evaluate": evaluate}
    return rounds_of_log(_finished(deployed, app, config))


def _finished(deployed: Deployment, app: Path, config: Mapping[str, Value]) -> list[str]:
    """Start a run and wait for its end; its log. Raises RuntimeError if it failed."""
    run = runs.submit(deployed.control, app, config)
    lines = list(runs.log_lines(deployed.control, run))
    state = runs.status(deployed.control, run).state
    if state != "finished:completed":
        raise RuntimeError(f"a run ended as {state}: {''.join(lines[-20:])}")
    return lines


# --- deployments -------------------------------------------------------------------------------------


def _our_server(at: Places) -> list[str]:
    file = str(at.folder / "certs" / "server" / "server.toml")
    return [*SPECFED, "server", "--config", file, "--control-port", str(at.control), "--runs", "runs"]


def _our_node(at: Places, site: str) -> list[str]:
    file = str(at.folder / "certs" / site / "node.toml")
    part = f"{SITES.index(site) + 1}/{len(SITES)}"
    return [*SPECFED, "node", "--config", file, "--data", "digits", "--part", part]


def _stock_server(at: Places) -> list[str]:
    files = at.folder / "certs" / "server"
    return [
        *(FLOWER + "superlink", "--host", LOOPBACK, "--port", str(at.control)),
        *("--fleet-api-address", f"{LOOPBACK}:{at.fleet}", "--disable-runtime-dependency-installation"),
        *("--ssl-ca-certfile", str(at.ca), "--ssl-certfile", str(files / "server.crt")),
        *("--ssl-keyfile", str(files / "server.key"), "--enable-supernode-auth"),
        *("--database", str(at.folder / "server.db")),
    ]


def _stock_node(at: Places, site: str) -> list[str]:
    return [
        *(FLOWER + "supernode", "--superlink", f"localhost:{at.fleet}", "--root-certificates", str(at.ca)),
        *("--host", LOOPBACK, "--port", str(at.runtimes[site])),
        *("--auth-supernode-private-key", str(at.folder / "certs" / site / f"{site}.key")),
        *("--node-config", f"partition-id={SITES.index(site)} num-partitions={len(SITES)}"),
    ]


SPECFED = (sys.executable, "-m", "specfed.cli")
FLOWER = str(Path(sys.executable).parent / "flower-")
OURS = Kind(_our_server, _our_node)
STOCK = Kind(_stock_server, _stock_node)


@contextmanager
def deployment(folder: Path, kind: Kind) -> Iterator[Deployment]:
    """A server and its nodes, enrolled and online; all of it ends at the exit."""
    folder.mkdir()
    with ExitStack() as stack:
        ports = [stack.enter_context(reserve_port()) for _ in range(2 + len(SITES))]
        at = Places(folder, ports[0], ports[1], dict(zip(SITES, ports[2:], strict=True)))
        hosts = ["--host", "localhost", "--port", str(at.fleet)]
        for words in (["init", *hosts], ["issue", *SITES]):
            subprocess.run([*SPECFED, "certs", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        files = folder / "certs" / "server"
        tls = ServerTls(at.ca, files / "server.crt", files / "server.key")
        control = Address(LOOPBACK, at.control)

        processes = [stack.enter_context(_process("server", kind.server(at), folder))]
        wait_ready(Server(processes[0], Address(LOOPBACK, at.fleet), control), tls)
        for site in SITES:
            key = reading.read_public_key(folder / "certs" / site / f"{site}.pub")
            registry.enroll(control, at.ca, site, key)
        processes += [stack.enter_context(_process(site, kind.node(at, site), folder)) for site in SITES]
        _wait_online(control, at.ca, processes)
        yield Deployment(Control(control, at.ca, folder / "control"), folder, processes)


def stage_stock(folder: Path) -> Path:
    """The ordinary app with the licence that Flower asks for; to be handed to ``runs.submit``."""
    shutil.copytree(STOCK_APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(STOCK_APP.parent.parent / "LICENSE", folder)
    return folder


def _wait_online(control: Address, ca: Path, processes: Sequence[Process]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while {node.state for node in registry.nodes(control, ca)} != {"online"}:
        for process in processes:
            children.require_running(process)
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all nodes came online within {START_SECONDS:.0f} seconds")
        time.sleep(0.5)


@contextmanager
def _process(name: str, command: Sequence[str], folder: Path) -> Iterator[Process]:
    """A command in the background that writes to ``folder/NAME.log``; it and its group end at the exit."""
    log = folder / f"{name}.log"
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(folder / name)}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    with log.open("wb") as output:
        popen = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **quiet, "PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    process = Process(name, popen, log)
    try:
        yield process
    finally:
        children.stop([process])
        with suppress(ProcessLookupError):
            os.killpg(popen.pid, signal.SIGKILL)  # what stock Flower leaves behind


# --- idle --------------------------------------------------------------------------------------------


def of_idle(deployments: Mapping[str, Deployment], seconds: float) -> dict[str, object]:
    """What each deployment costs while nothing runs, all measured at the same time."""
    roots = {name: [one.popen.pid for one in it.processes] for name, it in deployments.items()}
    before = {name: measure.descendants(pids) for name, pids in roots.items()}
    start = time.monotonic()
    time.sleep(seconds)
    after = {name: measure.descendants(pids) for name, pids in roots.items()}
    passed = time.monotonic() - start
    return {"seconds": seconds, **{name: idle_cost(before[name], after[name], passed) for name in roots}}


def idle_cost(before: Mapping[int, int], after: Mapping[int, int], seconds: float) -> dict[str, object]:
    """Percent of a core, in all and by role, and memory, of the processes that are there ``after``.

    Both maps give clock ticks of CPU time by process id.
    """
    tick = 100 / os.sysconf("SC_CLK_TCK") / seconds
    percent: Counter[str] = Counter()
    for pid, ticks in after.items():
        percent[role(_command_line(pid))] += tick * (ticks - before.get(pid, 0))  # type: ignore[assignment]
    memory = [_memory(pid) for pid in after]
    return {
        "percent-of-one-core": round(sum(percent.values()), 2),
        "by-role": {name: round(value, 2) for name, value in sorted(percent.items())},
        "processes": len(after),
        "rss-mib": round(sum(m["Rss"] for m in memory) / 1024),
        "pss-mib": round(sum(m["Pss"] for m in memory) / 1024),
    }


def role(command: str) -> str:
    """What a process does, by its command line."""
    return next((name for mark, name in ROLES.items() if mark in command), "other")


def _command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _memory(pid: int) -> dict[str, int]:
    """KiB that a process has in memory, and with shared pages divided among those that share them."""
    found = {"Rss": 0, "Pss": 0}
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        found |= {n: int(line.split()[1]) for line in lines for n in found if line.startswith(f"{n}:")}
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
