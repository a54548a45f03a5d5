"""A whole federation on this machine: one server and several nodes, as real processes over gRPC."""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.config import NodeConfig, RunConfig, Value
from common.datasets import Examples, load
from common.errors import ConfigError, DataError, UnreachableError
from common.partition import free_rider, in_words, parse_part, split
from common.seeding import stream
from specfed.addresses import LOOPBACK, Address, reserve_port
from specfed.launcher import app_files, children, runs, start
from specfed.launcher.children import Process
from specfed.launcher.runs import Control
from specfed.launcher.start import Server

ONLINE_SECONDS = 120.0
FREE_RIDER_SAMPLES = 10
FREE_RIDER_NODES = 3  # with fewer nodes there is nobody to compare one with

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Federation:
    """A running server with its nodes. All of it ends with the ``federation`` that made it."""

    server: Server
    nodes: Mapping[str, Process]
    control: Control
    app: Path
    logs: Path  # one file for each process
    log_keepers: list[Process]  # one for each run
    fleet: Address  # where nodes dial

    def submit(self, config: Mapping[str, Value]) -> "LocalRun":
        """Start a run as soon as the server answers. Its log goes to ``run.log``."""
        start.wait_ready(self.server)
        run = runs.submit(self.control, self.app, config)
        keeper = runs.keep_log(self.control, run, self.logs / "run.log")
        self.log_keepers.append(keeper)
        return LocalRun(self, run, keeper)

    def wait_online(self) -> None:
        """Wait until all nodes are known to the server.

        Raises PortError or UnreachableError if one of them ends, or is not there within two minutes.
        """
        deadline = time.monotonic() + ONLINE_SECONDS
        while waiting := [node for node in self.nodes.values() if not start.online(node)]:
            for process in (self.server.process, *waiting):
                children.require_running(process)
            if time.monotonic() > deadline:
                raise UnreachableError(
                    f"{waiting[0].name} did not reach the server: {waiting[0].last_words()}"
                )
            time.sleep(0.1)


@dataclass(frozen=True)
class LocalRun:
    """A run of a local federation."""

    federation: Federation
    id: str  # the server's name for it
    log_keeper: Process

    def finished(self) -> bool:
        """Whether nothing more will come of it. Raises UnreachableError if the server is gone."""
        if self.log_keeper.running():
            return False
        children.require_running(self.federation.server.process)
        return runs.status(self.federation.control, self.id).finished

    def details(self) -> str:
        """What the server says of a run that ended."""
        return runs.status(self.federation.control, self.id).details


@contextmanager
def federation(
    nodes: Sequence[NodeConfig],
    folder: Path,
    server_environment: Mapping[str, str],
    node_environment: Mapping[str, str],
) -> Iterator[Federation]:
    """Start a server and ``nodes`` on free loopback ports; end all of it at the exit, whatever happens.

    ``folder`` takes scratch files and, in ``folder/logs``, the output of every process. Server and nodes may
    still be loading when this yields.
    """
    logs = folder / "logs"
    with ExitStack() as stack:
        fleet, control, *runtimes = (
            Address(LOOPBACK, stack.enter_context(reserve_port())) for _ in range(2 + len(nodes))
        )
        warm, path = _warm(folder, logs / "warm.log")
        stack.callback(children.stop, warm)
        server = start.spawn_server(
            folder / "server",
            fleet,
            control,
            environment={**server_environment, **path},
            log=logs / "server.log",
        )
        stack.callback(children.stop, [server.process])
        # Nodes load while the server does: they dial until it is there.
        processes: dict[str, Process] = {}
        stack.callback(lambda: children.stop(processes.values()))
        for node, runtime in zip(nodes, runtimes, strict=True):
            processes[node.name] = start.spawn_node(
                folder / node.name,
                fleet,
                runtime.port,
                node.as_dict(),
                environment={**node_environment, **path},
                log=logs / f"{node.name}.log",
            )
        log_keepers: list[Process] = []
        stack.callback(children.stop, log_keepers)
        yield Federation(
            server,
            processes,
            Control(control, None, folder / "control"),
            app_files.stage_app(folder / "app"),
            logs,
            log_keepers,
            fleet,
        )


def _warm(folder: Path, log: Path) -> tuple[list[Process], dict[str, str]]:
    """The warm start with its environment; nothing where it cannot be had, and apps start slowly."""
    try:
        return start.spawn_warm(folder, log)
    except ConfigError:
        return [], {}


@contextmanager
def scratch() -> Iterator[Path]:
    """A private folder for one federation's files, gone at the exit. ConfigError if none can be made."""
    try:
        made = tempfile.TemporaryDirectory(prefix="specfed-", ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigError(
            f"no folder for scratch files can be made: {error.strerror}; set TMPDIR to one that takes them"
        ) from None
    with made as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Shares:
    """One data set dealt out to several nodes."""

    nodes: tuple[NodeConfig, ...]
    train: int  # rows that were dealt out
    test: int  # rows that the server tests on
    how: str  # the split, in words
    free_rider: str  # name of the node that is one, or empty
    input_shape: tuple[int, ...]
    classes: int


def deal(
    data: str,
    nodes: int,
    partition: str,
    alpha: float,
    seed: int,
    with_free_rider: bool,
    folder: Path,
    rows: int = 0,
) -> Shares:
    """Split the training rows of ``data`` over ``site-1`` to ``site-N``, whose row numbers go to ``folder``.

    Of all rows, or of ``rows`` random ones if that is not 0.

    With ``with_free_rider`` and at least three nodes, the last one holds ten of its rows, repeated until
    it claims as many as the others have on average. Raises ConfigError for fewer than two nodes or more
    ``rows`` than there are, and DataError for data that cannot be had or split so.
    """
    if nodes < 2:
        raise ConfigError(f"--nodes takes at least 2; got {nodes}")
    examples = load(data, "train")
    if rows > len(examples):
        raise ConfigError(f"--rows takes at most the {len(examples):,} training rows there are; got {rows:,}")
    used = np.arange(len(examples))
    if rows:
        used = np.sort(stream(seed, "rows").permutation(used)[:rows])
    shares: list[Rows] = [used[part] for part in split(examples.y[used], partition, nodes, alpha, seed)]
    rides = with_free_rider and nodes >= FREE_RIDER_NODES
    if rides:
        size = round(sum(len(part) for part in shares[:-1]) / (nodes - 1))
        shares[-1] = free_rider(shares[-1], size, FREE_RIDER_SAMPLES, seed)
    folder.mkdir(parents=True, exist_ok=True)
    sites = [
        _site(NodeConfig(name=f"site-{i}", data=data), part, folder) for i, part in enumerate(shares, start=1)
    ]
    return Shares(
        tuple(sites),
        train=len(used),
        test=len(load(data, "test")),
        how=in_words(partition, alpha),
        free_rider=sites[-1].name if rides else "",
        input_shape=examples.input_shape,
        classes=examples.classes,
    )


def require_nodes(config: RunConfig, shares: Shares) -> None:
    """Raise ConfigError if a run waits for more nodes than have a share: no other one can come."""
    if config.min_nodes > len(shares.nodes):
        raise ConfigError(f"min-nodes ({config.min_nodes}) exceeds --nodes ({len(shares.nodes)})")


def try_model(config: RunConfig, shares: Shares) -> None:
    """Build the run's model once, before anything is started.

    Raises ModelError if that cannot be done, its outputs are no logits, or a weight that the run names is
    not there.
    """
    from common.models import build, require_logits, resolve_head
    from common.params import to_arrays, trainable
    from strategies.signals.entropy import check_layer

    model = build(config.model, shares.input_shape, shares.classes, config.seed)
    resolve_head(model, shares.classes, config.head)
    require_logits(model, shares.input_shape, shares.classes)
    if config.entropy_layer:
        check_layer(config.entropy_layer, to_arrays(trainable(model)))


def take_part(config: NodeConfig, part: str, alpha: float, seed: int, folder: Path) -> tuple[NodeConfig, int]:
    """A node's configuration and how many examples it gets, after a look at its data.

    ``part``, such as ``1/3``, leaves it one of so many parts, split by ``dirichlet`` with ``alpha``, or
    evenly for 0; an empty one leaves it all. Raises DataError if there is nothing to train on.
    """
    examples = load(config.data, "train")
    rows = part_of(examples, part, alpha, seed)
    if len(rows) == 0:
        raise DataError(f'data "{config.data}" hold no training examples')
    return (_site(config, rows, folder) if part else config), len(rows)


def part_of(examples: Examples, part: str, alpha: float, seed: int) -> Rows:
    """The numbers of the rows that ``part`` leaves to a node; all of them for an empty one."""
    if not part:
        return np.arange(len(examples))
    index, count = parse_part(part)
    return split(examples.y, "dirichlet" if alpha else "iid", count, alpha or 1.0, seed)[index]


def _site(config: NodeConfig, rows: Rows, folder: Path) -> NodeConfig:
    """The configuration with these rows, whose numbers go to a file in ``folder``."""
    file = folder / f"{config.name}.npy"
    content = BytesIO()  # what numpy says of a full disk names no disk
    np.save(content, rows, allow_pickle=False)
    file.write_bytes(content.getvalue())
    return config.model_copy(update={"rows": str(file)})
