"""Where servers listen and are dialled, and which ports are free."""

import errno
import fcntl
import os
import random
import re
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from common.errors import ConfigError, PortError

LOOPBACK = "127.0.0.1"
_PORTS = range(20_000, 32_000)  # below the ports that Linux gives to outgoing connections


def unproxied(environment: Mapping[str, str]) -> dict[str, str]:
    """What spares loopback the proxy of this environment, beside whatever its ``no_proxy`` spares already.

    Clients read one of two spellings, and gRPC a third one first, if it is there.
    """
    lower, upper = environment.get("no_proxy", ""), environment.get("NO_PROXY", "")
    spared = {"no_proxy": lower or upper, "NO_PROXY": upper or lower}
    grpc = environment.get("no_grpc_proxy", "")
    if grpc or "*" in lower or "*" in upper:  # which gRPC takes for a name
        spared["no_grpc_proxy"] = grpc
    return {name: _with_loopback(hosts) for name, hosts in spared.items()}


def _with_loopback(hosts: str) -> str:
    known = [host.strip() for host in hosts.split(",") if host.strip()]
    return ",".join(known if "*" in known else dict.fromkeys([*known, LOOPBACK, "localhost", "::1"]))


@dataclass(frozen=True)
class Address:
    """Where a server listens, or is dialled."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """``HOST:PORT`` or ``[IPv6]:PORT``. Raises ConfigError for anything else."""
        match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5})", text)
        if match is None or not 0 < int(match[2]) < 65536:
            raise ConfigError(f'"{text}" is not an address; it takes HOST:PORT, such as {LOOPBACK}:9092')
        return cls(match[1].strip("[]"), int(match[2]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def local(self) -> "Address":
        """The address under which this machine reaches it: loopback for one that binds everywhere."""
        return Address({"0.0.0.0": LOOPBACK, "::": "::1"}.get(self.host, self.host), self.port)


@contextmanager
def reserve_port() -> Iterator[int]:
    """A free port on loopback that no other reservation on this machine gets while this one lasts.

    It is free to bind, not bound. Raises PortError if none can be had, ConfigError if none can be reserved.
    """
    for port in random.SystemRandom().sample(_PORTS, min(200, len(_PORTS))):
        lock = _lock(port)
        if lock is None:
            continue
        with lock:
            if can_bind(Address(LOOPBACK, port)):
                yield port
                return
    raise PortError(f"no free port between {_PORTS[0]} and {_PORTS[-1]}")


def require_free(address: Address, option: str) -> None:
    """Raises PortError, naming the ``option`` that changes it, if the address cannot be listened on."""
    if not can_bind(address):
        raise PortError(f"port {address.port} on {address.host} is in use; choose another with {option}")


def _lock(port: int) -> IO[bytes] | None:
    try:
        folder = Path(tempfile.gettempdir()) / f"specfed-ports-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        file = (folder / str(port)).open("wb")
    except OSError as error:
        what = error.filename or "a folder for reserved ports"
        raise ConfigError(
            f"{what} cannot be written: {error.strerror}; remove it, or set TMPDIR to another folder"
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def can_bind(address: Address) -> bool:
    """Whether nothing listens there. Raises ConfigError for a host that is not this machine's."""
    try:
        known = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the last for a host that is no name, such as a..b
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f'host "{address.host}" cannot be resolved: {why}') from None
    family, kind, _, _, target = known[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(target)
        except PermissionError:
            raise PortError(f"port {address.port} may not be bound without more rights") from None
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(f'host "{address.host}" is not an address of this machine') from None
            return False
    return True
