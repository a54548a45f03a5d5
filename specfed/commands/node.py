"""``specfed node``: a site's node that stays until Ctrl-C."""

import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.errors import ConfigError, UnreachableError
from specfed import __version__
from specfed.commands.options import INSECURE, Config, Health, Insecure, LogFormat, TlsCa, given
from specfed.commands.terminal import told
from specfed.logs import Log

if TYPE_CHECKING:
    from specfed.deployment import NodeSettings
    from specfed.launcher.children import Process
    from specfed.launcher.start import Parting

PAUSE = 20.0  # seconds before a node starts anew


def node(
    context: typer.Context,
    config: Config = None,
    server: Annotated[str | None, typer.Option(help="HOST:PORT of the server, its --port.")] = None,
    data: Annotated[str | None, typer.Option(help="This site's data; they stay here.")] = None,
    name: Annotated[str | None, typer.Option(help="This site's name, the same every time.")] = None,
    part: Annotated[str | None, typer.Option(help="Use only a part of the data, such as 1/3.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Dirichlet parameter of --part; 0, the default, makes equal parts.")
    ] = None,
    part_seed: Annotated[int | None, typer.Option(help="Seed of --part, the same on all nodes.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:1.")] = None,
    validation: Annotated[
        float | None, typer.Option(help="Share of the data kept to test models on; 0.1.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads for training; 0, the default, leaves it to the run.")
    ] = None,
    # Absolute: the node's processes have folders of their own.
    state: Annotated[
        Path | None,
        typer.Option(resolve_path=True, help="Folder for what algorithms remember between rounds."),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(resolve_path=True, help="The site's policy file; without one a run may do everything."),
    ] = None,
    key: Annotated[Path | None, typer.Option(help="This node's private key, enrolled at the server.")] = None,
    insecure: Insecure = None,
    tls_ca: TlsCa = None,
    health: Health = None,
    log_format: LogFormat = None,
) -> None:
    """Start this site's node and stay until Ctrl-C."""
    from specfed import cluster, deployment, dial
    from specfed.addresses import Address, require_free, reserve_port
    from specfed.launcher import children, start

    settings = deployment.read_settings(deployment.NodeSettings, config, given(context))
    log = Log(settings.log_format == "json")
    with told(log), ExitStack() as stack:
        address = Address.parse(settings.server)
        endpoint = Address.parse(settings.health) if settings.health else None
        identity, warnings = deployment.node_identity(settings)
        for warning in [*warnings, *([INSECURE] if settings.insecure else [])]:
            log.warn(warning)
        stack.enter_context(deployment.alone_with(identity.key))
        listed = settings.listed_apps()
        if settings.state:
            deployment.writable(Path(settings.state), "state", 0o700)
        if endpoint is not None:
            require_free(endpoint, "--health")
        deployment.require_device(settings.device)
        folder = stack.enter_context(cluster.scratch())
        said, count = cluster.take_part(
            settings.config(), settings.part, settings.alpha, settings.part_seed, folder
        )
        if not said.state:  # else Flower keeps what algorithms remember in memory, of each run that ever was
            said = said.model_copy(update={"state": str(folder / "state")})
        warning = dial.require_fleet(address, identity.ca)
        if warning:
            log.warn(warning)
        log.say(
            f"specfed {__version__} · node {settings.name} · {count:,} examples of {settings.data} "
            f"· dials {address}"
        )
        asked: Counter[str] = Counter()

        def relay(line: str) -> None:
            asked.update(re.findall(r"Receiving: (\w+) message", line))
            log.relay(line)

        port = stack.enter_context(reserve_port())
        own = children.python_path() | (
            {"OMP_NUM_THREADS": str(settings.threads)} if settings.threads else {}
        )
        try:
            warm, path = start.spawn_warm(folder, guarded=bool(listed))
        except ConfigError as error:
            if listed:
                raise ConfigError(f"the apps in {settings.policy} cannot be enforced: {error}") from None
            log.warn(f"each round starts some seconds later: {error}")
            warm, path = [], {}
        start_one = partial(
            start.spawn_node,
            folder,
            address,
            port,
            said.as_dict(),
            identity.ca,
            own | path | listed,
            folder / "node.log",
            key=identity.key,
            health=endpoint,
            relay=relay,
        )
        try:
            if parting := _serve(start_one, log):
                raise UnreachableError(_sent_away(parting, settings))
        finally:
            children.stop(warm)
            log.say(f"node {settings.name} stopped; it was asked to train {asked['train']} times")


def _serve(start_one: Callable[[], "Process"], log: Log, pause: float = PAUSE) -> "Parting | None":
    """Run a node to its end, and start it anew where an error of the server's has ended it; why it was sent
    away, if it was.

    A server that was in trouble may still hold the former node for present, and refuse the new one for a
    minute. Raises what a node that ended by itself has to say.
    """
    from specfed.launcher import children, start
    from specfed.launcher.supervisor import LOST

    lost = -inf
    while True:
        process = start_one()
        try:
            code = process.popen.wait()
            parting = start.parting(process)
            if code == LOST:
                lost = time.monotonic()
            elif parting and not (parting == "refused" and time.monotonic() - lost < 4 * pause):
                return parting
            elif not parting:
                children.require_running(process)
        finally:
            children.stop([process])
        log.warn(f"the server failed in the middle of a call; this node starts anew in {pause:.0f} seconds")
        time.sleep(pause)


def _sent_away(parting: "Parting", settings: "NodeSettings") -> str:
    """What a node's operator can do when the server has sent the node away."""
    server, key = f"the server at {settings.server}", f"key {settings.key}"
    enrolled_only = (
        f"{server} takes enrolled nodes only; give this node's --key, whose .pub is enrolled there"
    )
    not_enrolled = (
        f"{server} does not accept {key}: it is not enrolled there, was revoked, or another node with it "
        "runs or died less than a minute ago; a server with --any-node takes this node without --key"
    )
    revoked = (
        f"{server} no longer accepts {key}: it was revoked, the server lost its state, or the clocks of the "
        "two machines differ by more than 5 seconds"
    )
    restarted = f"{server} no longer knows this node, as after a restart; start the node again"
    if parting == "version":
        return f"{server} has another version of Flower, as said above; install the specfed that it has"
    return {
        ("refused", True): not_enrolled,
        ("refused", False): enrolled_only,
        ("forgotten", True): revoked,
        ("forgotten", False): restarted,
    }[parting, bool(settings.key)]
