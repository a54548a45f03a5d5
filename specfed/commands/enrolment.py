"""``specfed enroll``, ``revoke`` and ``nodes``: which nodes a running server takes."""

from pathlib import Path
from typing import Annotated

import typer

from specfed.commands.options import ControlAddress, Insecure, ServerConfig, TlsCa, reach
from specfed.commands.terminal import print_table


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
    from specfed.certs import reading

    key = reading.read_public_key(public_key)
    site = public_key.stem if name is None else name
    NodeConfig.read({"name": site, "data": "-"}, "--name")
    address, ca = reach(config, server, insecure, tls_ca)
    from specfed.launcher import registry

    registry.enroll(address, ca, site, key)
    print(f"enrolled {site} · key {reading.fingerprint(key)}")


def revoke(
    name: Annotated[str, typer.Argument(help="A site's name.")],
    config: ServerConfig = None,
    server: ControlAddress = None,
    insecure: Insecure = None,
    tls_ca: TlsCa = None,
) -> None:
    """Let a site take part no more. Its key is of no use from then on, its name is free."""
    address, ca = reach(config, server, insecure, tls_ca)
    from specfed.launcher import registry

    registry.revoke(address, ca, name)
    print(f"revoked {name}")


def nodes(
    config: ServerConfig = None,
    server: ControlAddress = None,
    insecure: Insecure = None,
    tls_ca: TlsCa = None,
) -> None:
    """List the nodes that the running server knows."""
    from rich.table import Table

    from specfed.certs import reading

    address, ca = reach(config, server, insecure, tls_ca)
    from specfed.launcher import registry

    table = Table("name", "state", "last seen", "key", box=None, pad_edge=False)
    for one in registry.nodes(address, ca):
        seen = f"{one.last_seen:%Y-%m-%d %H:%M} UTC" if one.last_seen else "-"
        name = one.name or "not enrolled"
        table.add_row(name, one.state, "now" if one.state == "online" else seen, reading.fingerprint(one.key))
    print_table(table)
