"""``specfed server``: a server that stays until Ctrl-C."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from common.errors import DataError
from specfed import __version__
from specfed.commands.options import INSECURE, Config, Health, Insecure, LogFormat, TlsCa, given
from specfed.commands.terminal import told
from specfed.logs import Log


def server(
    context: typer.Context,
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
        bool | None, typer.Option("--any-node", help="With TLS, take nodes that start without a --key, too.")
    ] = None,
    log_format: LogFormat = None,
) -> None:
    """Start the server and stay until Ctrl-C."""
    from specfed import cluster, deployment
    from specfed.addresses import Address, require_free
    from specfed.launcher import children, start

    settings = deployment.read_settings(deployment.ServerSettings, config, given(context))
    log = Log(settings.log_format == "json")
    with told(log), ExitStack() as stack:
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
        endpoint = Address.parse(settings.health) if settings.health else None
        for address, option in ((fleet, "--port"), (control, "--control-port"), (endpoint, "--health")):
            if address is not None:
                require_free(address, option)
        folder = stack.enter_context(cluster.scratch())
        started = time.time()
        output = where / f"server-{settings.port}.log"
        running = start.spawn_server(
            folder,
            fleet,
            control,
            tls,
            database,
            {"SPECFED_RUNS": str(where), **children.python_path()},
            output,
            enrolled_only=settings.enrolled_only,
            health=endpoint,
            relay=log.relay if log.json else None,
        )
        try:
            start.wait_ready(running, tls)
            log.say(f"specfed {__version__} · server · nodes dial {fleet} · runs are started at {control}")
            if database is not None:
                log.say(f"{_who(settings.enrolled_only)} · state {database.parent}")
            log.say(f"run folders go to {where} · log {output}")
            running.process.popen.wait()
            children.require_running(running.process)
        finally:
            children.stop([running.process])
            for line in what_ran(where, started):
                log.say(line)


def what_ran(runs: Path, since: float) -> Iterator[str]:
    """A line for each run in the folder ``runs`` that wrote into its ledger after this time, by its name."""
    from common.checkpoint import finished
    from common.ledger import LEDGER, End, Header, read

    for file in sorted(runs.glob(f"*/{LEDGER}")):
        try:
            records = list(read(file)) if file.stat().st_mtime >= since else []
        except DataError as error:  # a foreign file must not keep the server from ending well
            yield str(error)
            continue
        if not records or not isinstance(records[0], Header):
            continue
        name, end = file.parent.name, records[-1]
        rounds = max((r.round for r in records if not isinstance(r, Header | End)), default=0)
        planned = records[0].config.get("rounds", "?")
        if isinstance(end, End) and end.status != "stopped":
            yield f"run {name} · {end.status} · {end.rounds} of {planned} rounds"
        elif finished(file.parent / "checkpoints"):
            yield f"run {name} · stopped after round {rounds} of {planned}; resume={name} goes on with it"
        else:
            yield f"run {name} · stopped before round 1 of {planned} was over; it has to start anew"


def _who(enrolled_only: bool) -> str:
    return "takes enrolled nodes only" if enrolled_only else "takes any node"
