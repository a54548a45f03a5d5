"""The commands of a deployment: server, node, and which nodes a server accepts."""

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.errors import ConfigError, DataError, SpecfedError, UnreachableError
from specfed import __version__
from specfed.logs import Log

if TYPE_CHECKING:
    from specfed.deployment import NodeSettings
    from specfed.launcher import Address, Parting

Config = Annotated[Path | None, typer.Option(help="TOML file with these options as keys; options win.")]
Insecure = Annotated[bool | None, typer.Option("--insecure", help="Talk without encryption.")]
TlsCa = Annotated[Path | None, typer.Option(help="Certificate of the CA that vouches for the server.")]
Health = Annotated[
    str | None,
    typer.Option(envvar="SPECFED_HEALTH", help="HOST:PORT at which gRPC health checks are answered."),
]
LogFormat = Annotated[str | None, typer.Option(help="human or json.")]
ServerConfig = Annotated[
    Path | None, typer.Option("--config", help="The server's TOML file, for its address and its CA.")
]
ControlAddress = Annotated[
    str | None, typer.Option(help="HOST:PORT of the server, its --control-port; 127.0.0.1:8000 if not given.")
]

WIDE = 200  # characters of a table's line that goes to no terminal: names and keys stay whole
CONTROL = "127.0.0.1:8000"


def server(
    config: Config = None,
    host: Annotated[str | None, typer.Option(help="Address that nodes dial; 0.0.0.0 if not given.")] = None,
    port: Annotated[int | None, typer.Option(help="Port that nodes dial; 9092.", min=1, max=65535)] = None,
    control_host: Annotated[
        str | None, typer.Option(help="Address that runs are started at; 127.0.0.1.")
    ] = None,
    control_port: Annotated[
        int | None, typer.Option(help="Port that runs are started at; 8000.", min=1, max=65535)
    ] = None,
    health: Health = None,
    runs: Annotated[Path | None, typer.Option(help="Folder that the run folders go to; runs.")] = None,
    state: Annotated[
        Path | None, typer.Option(help="Folder in which enrolments survive a restart; state, with TLS.")
    ] = None,
    insecure: Insecure = None,
    tls_ca: TlsCa = None,
    tls_cert: Annotated[Path | None, typer.Option(help="The server's certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The key of the server's certificate.")] = None,
    any_node: Annotated[
        bool | None, typer.Option("--any-node", help="With TLS, take nodes that are not enrolled too.")
    ] = None,
    log_format: LogFormat = None,
) -> None:
    """Start the server and stay until Ctrl-C."""
    from specfed import cluster, deployment, launcher

    options = {
        "host": host,
        "port": port,
        "control-host": control_host,
        "control-port": control_port,
        "health": health,
        "runs": _text(runs),
        "state": _text(state),
        "insecure": insecure,
        "tls-ca": _text(tls_ca),
        "tls-cert": _text(tls_cert),
        "tls-key": _text(tls_key),
        "any-node": any_node,
        "log-format": log_format,
    }
    settings = deployment.read_settings(deployment.ServerSettings, config, options)
    log = Log(settings.log_format == "json")
    with _told(log), ExitStack() as stack:
        tls, warnings = deployment.server_tls(settings)
        if settings.insecure:
            warnings.append(INSECURE)
        elif settings.any_node:
            warnings.append("--any-node: whoever holds the CA's certificate can take part")
        for warning in warnings:
            log.warn(warning)
        where = deployment.writable(Path(settings.runs), "--runs")
        database = stack.enter_context(deployment.database(settings))
        fleet, control = settings.fleet, settings.control
        endpoint = launcher.Address.parse(settings.health) if settings.health else None
        for address, option in ((fleet, "--port"), (control, "--control-port"), (endpoint, "--health")):
            if address is not None:
                launcher.require_free(address, option)
        folder = stack.enter_context(cluster.scratch())
        started = time.time()
        output = where / f"server-{settings.port}.log"
        running = launcher.spawn_server(
            folder,
            fleet,
            control,
            tls,
            database,
            {"SPECFED_RUNS": str(where), **python_path()},
            output,
            enrolled_only=settings.enrolled_only,
            health=endpoint,
            relay=log.relay if log.json else None,
        )
        try:
            launcher.wait_ready(running, tls)
            log.say(f"specfed {__version__} · server · nodes dial {fleet} · runs are started at {control}")
            if database is not None:
                log.say(f"{_who(settings.enrolled_only)} · state {database.parent}")
            log.say(f"run folders go to {where} · log {output}")
            running.process.popen.wait()
            launcher.require_running(running.process)
        finally:
            launcher.stop([running.process])
            for line in what_ran(where, started):
                log.say(line)


def node(
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
    state: Annotated[
        Path | None, typer.Option(help="Folder for what algorithms remember between rounds.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="The site's policy file; without one a run may do everything.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="This node's private key, enrolled at the server.")] = None,
    insecure: Insecure = None,
    tls_ca: TlsCa = None,
    health: Health = None,
    log_format: LogFormat = None,
) -> None:
    """Start this site's node and stay until Ctrl-C."""
    from specfed import cluster, deployment, launcher

    options = {
        "server": server,
        "data": data,
        "name": name,
        "part": part,
        "alpha": alpha,
        "part-seed": part_seed,
        "device": device,
        "validation": validation,
        "threads": threads,
        "state": _resolved(state),
        "policy": _resolved(policy),
        "key": _text(key),
        "insecure": insecure,
        "tls-ca": _text(tls_ca),
        "health": health,
        "log-format": log_format,
    }
    settings = deployment.read_settings(deployment.NodeSettings, config, options)
    log = Log(settings.log_format == "json")
    with _told(log), ExitStack() as stack:
        address = launcher.Address.parse(settings.server)
        endpoint = launcher.Address.parse(settings.health) if settings.health else None
        identity, warnings = deployment.node_identity(settings)
        for warning in [*warnings, *([INSECURE] if settings.insecure else [])]:
            log.warn(warning)
        stack.enter_context(deployment.alone_with(identity.key))
        listed = settings.listed_apps()
        if settings.state:
            deployment.writable(Path(settings.state), "state", 0o700)
        if endpoint is not None:
            launcher.require_free(endpoint, "--health")
        folder = stack.enter_context(cluster.scratch())
        said, count = cluster.take_part(
            settings.config(), settings.part, settings.alpha, settings.part_seed, folder
        )
        warning = launcher.require_fleet(address, identity.ca)
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

        port = stack.enter_context(launcher.reserve_port())
        own = python_path() | ({"OMP_NUM_THREADS": str(settings.threads)} if settings.threads else {})
        warm, path = launcher.spawn_warm(folder)
        if listed and not warm:
            raise ConfigError(
                f"the apps in {settings.policy} cannot be enforced: {folder} is too long a path"
            )
        process = launcher.spawn_node(
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
            process.popen.wait()
            if parting := launcher.parting(process):
                raise UnreachableError(_sent_away(parting, settings))
            launcher.require_running(process)
        finally:
            launcher.stop([process, *warm])
            log.say(f"node {settings.name} stopped; it was asked to train {asked['train']} times")


def enroll(
    public_key: Annotated[Path, typer.Argument(help="A site's public key, such as site-a.pub.")],
    name: Annotated[str | None, typer.Option(help="The site's name; the file's, if not given.")] = None,
    config: ServerConfig = None,
    server: ControlAddress = None,
    insecure: Insecure = None,
    tls_ca: TlsCa = None,
) -> None:
    """Let a site take part: from now on the running server accepts its key, under its name."""
    from common.config import NodeConfig
    from specfed import certs

    key = certs.read_public_key(public_key)
    site = public_key.stem if name is None else name
    NodeConfig.read({"name": site, "data": "-"}, "--name")
    address, ca = reach(config, server, insecure, tls_ca)
    from specfed import launcher_nodes

    launcher_nodes.enroll(address, ca, site, key)
    print(f"enrolled {site} · key {certs.fingerprint(key)}")


def revoke(
    name: Annotated[str, typer.Argument(help="A site's name.")],
    config: ServerConfig = None,
    server: ControlAddress = None,
    insecure: Insecure = None,
    tls_ca: TlsCa = None,
) -> None:
    """Let a site take part no more. Its key is of no use from then on, its name is free."""
    address, ca = reach(config, server, insecure, tls_ca)
    from specfed import launcher_nodes

    launcher_nodes.revoke(address, ca, name)
    print(f"revoked {name}")


def nodes(
    config: ServerConfig = None,
    server: ControlAddress = None,
    insecure: Insecure = None,
    tls_ca: TlsCa = None,
) -> None:
    """List the nodes that the running server knows."""
    from rich.console import Console
    from rich.table import Table

    from specfed import certs

    address, ca = reach(config, server, insecure, tls_ca)
    from specfed import launcher_nodes

    table = Table("name", "state", "last seen", "key", box=None, pad_edge=False)
    for one in launcher_nodes.nodes(address, ca):
        seen = f"{one.last_seen:%Y-%m-%d %H:%M} UTC" if one.last_seen else "-"
        name = one.name or "not enrolled"
        table.add_row(name, one.state, "now" if one.state == "online" else seen, certs.fingerprint(one.key))
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDE).print(table)


# --- shared ------------------------------------------------------------------------------------------

INSECURE = "--insecure: nothing is encrypted, and anyone who reaches the port can take part"


def reach(
    config: Path | None, server: str | None, insecure: bool | None, tls_ca: Path | None
) -> "tuple[Address, Path | None]":
    """A server's control address, and the CA to trust; no CA without encryption.

    From the options, or else from the server's own file. Raises UnreachableError if no server takes runs
    there, ConfigError for options that do not go together.
    """
    from specfed import certs, deployment, launcher

    ca = tls_ca
    address = launcher.Address.parse(server or CONTROL)
    if config is not None:
        if insecure or tls_ca is not None:
            raise ConfigError("--config names the CA already; leave out --insecure and --tls-ca")
        settings = deployment.read_settings(deployment.ServerSettings, config, {})
        insecure, ca = settings.insecure, Path(settings.tls_ca) if settings.tls_ca else None
        address = address if server else settings.control.local()
    if bool(insecure) == (ca is not None):
        both = "both were given" if ca else "neither was given"
        raise ConfigError(
            f"choose --tls-ca, or --config with the server's file, for an encrypted connection, "
            f"or --insecure; {both}"
        )
    if ca is None:
        print(f"warning: {INSECURE}", file=sys.stderr)
    else:
        certs.read_certificates(ca, "CA certificate")
    launcher.require_control(address, ca)
    return address, ca


def python_path() -> dict[str, str]:
    """Lets a node or server import the user's own module:function from the current folder."""
    return {"PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])}


def what_ran(runs: Path, since: float) -> Iterator[str]:
    """A line for each run in the folder ``runs`` that wrote into its ledger after this time, by its name."""
    from common.ledger import End, Header, read

    for file in sorted(runs.glob("*/ledger.jsonl")):
        try:
            records = list(read(file)) if file.stat().st_mtime >= since else []
        except DataError as error:  # a foreign file must not keep the server from ending well
            yield str(error)
            continue
        if not records or not isinstance(records[0], Header):
            continue
        name, end = file.parent.name, records[-1]
        rounds = max((r.round for r in records if not isinstance(r, Header | End)), default=0)
        planned = records[0].config["rounds"]
        if isinstance(end, End) and end.status != "stopped":
            yield f"run {name} · {end.status} · {end.rounds} of {planned} rounds"
        else:
            yield f"run {name} · stopped after round {rounds} of {planned}; resume={name} goes on with it"


def _sent_away(parting: "Parting", settings: "NodeSettings") -> str:
    """What a node's operator can do when the server has sent the node away."""
    server, key = f"the server at {settings.server}", f"key {settings.key}"
    enrolled_only = (
        f"{server} takes enrolled nodes only; give this node's --key, whose .pub is enrolled there"
    )
    not_enrolled = (
        f"{server} does not accept {key}: it is not enrolled there, was revoked, or another node with it "
        "runs or died less than a minute ago"
    )
    revoked = (
        f"{server} no longer accepts {key}: it was revoked, the server lost its state, or the clocks of the "
        "two machines differ by more than 5 seconds"
    )
    restarted = f"{server} no longer knows this node, as after a restart; start the node again"
    return {
        ("refused", True): not_enrolled,
        ("refused", False): enrolled_only,
        ("forgotten", True): revoked,
        ("forgotten", False): restarted,
    }[parting, bool(settings.key)]


@contextmanager
def _told(log: Log) -> Iterator[None]:
    """Let a mistake be said in the format of the log."""
    try:
        yield
    except SpecfedError as error:
        if not log.json:
            raise
        log.error(str(error))
        raise typer.Exit(error.exit_code) from None


def _who(enrolled_only: bool) -> str:
    return "takes enrolled nodes only" if enrolled_only else "takes any node"


def _resolved(path: Path | None) -> str | None:
    """Absolute: the node's processes have folders of their own."""
    return None if path is None else str(path.resolve())


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
