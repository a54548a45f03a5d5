"""Options that several commands take, and what follows from them."""

import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.config import Value
from common.errors import ConfigError
from common.text import kebab

if TYPE_CHECKING:
    from specfed.addresses import Address

# --- of a server or node

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

# --- of runs

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Any key of 'specfed config'.")
]
Data = Annotated[str, typer.Option(help="Data that are split over the nodes.")]
Nodes = Annotated[int, typer.Option(help="Number of nodes, at least 2.")]
PARTITIONS = (
    "How data are dealt: iid, dirichlet, shards, only-label-skew, step-quantity-skew, step-label-skew."
)
Partition = Annotated[str, typer.Option(help=PARTITIONS)]
Alpha = Annotated[float, typer.Option(help="Dirichlet: the smaller, the more the nodes differ.")]
FreeRider = Annotated[
    bool, typer.Option("--free-rider/--no-free-rider", help="Whether the last of 3 or more nodes is one.")
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[EXPERIMENT.toml] [KEY=VALUE]...", help="Keys of 'specfed config'."),
]
Runs = Annotated[Path, typer.Option(help="Folder that the run folders go to.")]

CONTROL = "127.0.0.1:8000"
INSECURE = "--insecure: nothing is encrypted, and anyone who reaches the port can take part"


def reach(
    config: Path | None, server: str | None, insecure: bool | None, tls_ca: Path | None
) -> "tuple[Address, Path | None]":
    """A server's control address, and the CA to trust; no CA without encryption.

    From the options, or else from the server's own file. Raises UnreachableError if no server takes runs
    there, ConfigError for options that do not go together.
    """
    from specfed import deployment, dial
    from specfed.addresses import Address
    from specfed.certs import reading

    ca = tls_ca
    address = Address.parse(server or CONTROL)
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
        reading.read_certificates(ca, "CA certificate")
    dial.require_control(address, ca)
    return address, ca and ca.absolute()  # Flower takes no other path


def run_folders(config: Path | None) -> Path:
    """Where a server on this machine keeps its run folders, as its own file says, or else by default."""
    from specfed import deployment

    return Path(deployment.read_settings(deployment.ServerSettings, config, {}).runs if config else "runs")


def given(context: typer.Context) -> dict[str, Value | None]:
    """The options of a server or node as the keys of its file; None for one that was not given."""
    own = {"config", "as_json"}  # they say where settings come from and findings go
    return {kebab(key): value for key, value in context.params.items() if key not in own}


def run_folder(runs: Path, name: str) -> Path:
    """A new folder in ``runs``, not made yet: ``2026-12-01-demo-7f3a``, of day, name, and a random mark."""
    return runs / f"{datetime.now(UTC):%Y-%m-%d}-{name or 'run'}-{secrets.token_hex(2)}"
