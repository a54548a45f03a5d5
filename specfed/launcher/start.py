"""Flower's servers and nodes: how they are started, and what becomes of them."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.config import Value
from common.errors import ConfigError, UnreachableError
from specfed import dial
from specfed.addresses import LOOPBACK, Address
from specfed.launcher import children, naps, warm
from specfed.launcher.children import Process, Relay, flower_environment
from specfed.settings import toml

START_SECONDS = 60.0  # for a server to come up on a busy machine

# What glibc's allocator keeps in a node's processes, in bytes. By itself it gives large freed blocks back to
# the kernel and fetches them anew in the next local step: a fifth of ResNet-20's time on a CPU.
KEPT_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**25)}

# A node never was accepted; it was, and is no more; it is of another Flower, as the server refuses.
Parting = Literal["refused", "forgotten", "version"]
_PARTINGS: dict[str, Parting] = {
    "[code: 2001]": "refused",  # a node without a key
    "[code: 2004]": "refused",  # a key that is not enrolled, or in use
    "runtime version mismatch": "version",
    "SuperNode terminated gracefully": "forgotten",
}


@dataclass(frozen=True)
class ServerTls:
    """Certificate files of a server."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Server:
    """A running server."""

    process: Process
    fleet: Address  # nodes dial it
    control: Address  # runs are started here


def spawn_server(
    folder: Path,
    fleet: Address,
    control: Address,
    tls: ServerTls | None = None,
    database: Path | None = None,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
    *,
    enrolled_only: bool = False,
    health: Address | None = None,
    relay: Relay | None = None,
) -> Server:
    """Start a server; ``wait_ready`` tells when it answers. ``folder`` takes scratch files.

    The ports must be free. Without ``tls`` nothing is encrypted. With ``database`` the nodes' enrolments
    and the list of runs survive a restart; a run that is going on does not. ``enrolled_only`` needs
    ``tls``. At ``health`` gRPC's health protocol is answered as long as the process lives.
    """
    arguments = ["--host", control.host, "--port", str(control.port), "--fleet-api-address", str(fleet)]
    arguments += ["--disable-runtime-dependency-installation"]
    if tls is None:
        arguments += ["--insecure"]
    else:
        arguments += ["--ssl-ca-certfile", str(tls.ca), "--ssl-certfile", str(tls.certificate)]
        arguments += ["--ssl-keyfile", str(tls.key)]
    if database is not None:
        arguments += ["--database", str(database)]
    if enrolled_only:
        arguments += ["--enable-supernode-auth"]
    arguments += _health(health)
    process = children.spawn("server", "superlink", arguments, folder, log, environment or {}, relay)
    return Server(process, fleet, control)


def wait_ready(server: Server, tls: ServerTls | None = None) -> None:
    """Wait until nodes can dial the server and runs can be started on it.

    Raises UnreachableError if it ends or does not come up, and ConfigError if its certificate does not
    hold for this machine's own name of it.
    """
    deadline = time.monotonic() + START_SECONDS
    while not (dial.accepts(server.fleet.local(), 1.0) and _healthy(server.control.local(), tls)):
        children.require_running(server.process)
        if time.monotonic() > deadline:
            raise UnreachableError(f"the server did not come up within {START_SECONDS:.0f} seconds")
        time.sleep(0.05)


def _healthy(control: Address, tls: ServerTls | None) -> bool:
    if tls is None:
        return dial.answers(control, None)
    if not dial.answers(control, dial.unchecked()):
        return False
    if not dial.answers(control, dial.trusting(tls.ca)):
        # The server's own processes dial it by this name, so that runs would never start.
        raise ConfigError(f"certificate {tls.certificate} does not hold for {control.host} under {tls.ca}")
    return True


def spawn_node(
    folder: Path,
    fleet: Address,
    runtime_port: int,
    config: Mapping[str, Value],
    ca: Path | None = None,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
    *,
    key: Path | None = None,
    health: Address | None = None,
    relay: Relay | None = None,
) -> Process:
    """Start a node that dials ``fleet`` until it is answered; ``online`` tells when that has happened.

    ``runtime_port`` is a free loopback port for the node's own processes. Without ``ca`` nothing is
    encrypted. The private ``key`` tells the server which node it is. Without ``log`` and ``relay`` the node
    writes to our own terminal. At ``health`` gRPC's health protocol is answered as long as the process lives.
    """
    arguments = ["--superlink", str(fleet), "--host", LOOPBACK, "--port", str(runtime_port)]
    arguments += ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    if key is not None:
        arguments += ["--auth-supernode-private-key", str(key)]
    arguments += [*_health(health), "--node-config", node_config(config)]
    return children.spawn(str(config["name"]), "supernode", arguments, folder, log, environment or {}, relay)


def _health(address: Address | None) -> list[str]:
    return [] if address is None else ["--health-server-address", str(address)]


def spawn_warm(
    folder: Path, log: Path | None = None, *, guarded: bool = False
) -> tuple[list[Process], dict[str, str]]:
    """Start the process that app processes are forked from.

    Returns it, and the environment that servers and nodes need to make use of it. They do without it until
    it is ready. With ``guarded`` that environment finds no other program for a node's apps, even if ours is
    deleted later. Raises ConfigError, which says why, where it cannot be had.
    """
    address = warm.install(folder / "warm")
    kept = {name: os.environ.get(name, value) for name, value in KEPT_MEMORY.items()}
    process = children.spawn("warm start", "warm", [str(address)], folder, log, kept)
    naps.install(address.parent)
    others = flower_environment(folder)["PATH"]
    if guarded:
        others = warm.without_unguarded(others)
    path = os.pathsep.join(filter(None, [str(address.parent), others]))
    return [process], {"PATH": path}


def online(node: Process) -> bool:
    """Whether the server has accepted the node, by the node's log."""
    return node.log is not None and "SuperNode ID" in node.log.read_text(encoding="utf-8", errors="replace")


def parting(node: Process) -> Parting | None:
    """Why a node that ended by itself did so, if the server sent it away."""
    node.drain()
    text = "" if node.log is None else node.log.read_text(encoding="utf-8", errors="replace")
    return next((parting for sign, parting in _PARTINGS.items() if sign in text), None)


def node_config(config: Mapping[str, Value]) -> str:
    """A node's configuration as Flower's command line reads it: ``name="site-a" data="digits"``.

    Raises ConfigError for a text that it could not read back.
    """
    return " ".join(f"{key}={_node_value(key, value)}" for key, value in config.items())


def _node_value(key: str, value: Value) -> str:
    if not isinstance(value, str):
        return toml(value)
    if not value.isprintable():
        raise ConfigError(f'a node\'s "{key}" takes printable text; got {value!r}')
    # Flower splits at the same quotes that TOML uses, and knows no escaped ones.
    if '"' not in value:
        return '"' + value.replace("\\", "\\\\") + '"'
    if "'" not in value:
        return f"'{value}'"
    raise ConfigError(f'a node\'s "{key}" takes one kind of quotes, not both; got {value!r}')
