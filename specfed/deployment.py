"""What a server or node is told by its file and options, and what must hold before it starts."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from common.config import DEVICE_PATTERN, NAME_PATTERN, Checked, NodeConfig, Value
from common.errors import ConfigError
from common.files import alone
from common.plugins import is_plugin
from common.policy import read_policy
from specfed.addresses import Address
from specfed.certs import checking, reading
from specfed.launcher.guard import APPS
from specfed.launcher.start import ServerTls
from specfed.settings import check, read_file

DATABASE = "server.db"

Port = Annotated[int, Field(ge=1, le=65535)]
LogFormat = Literal["human", "json"]


class ServerSettings(Checked):
    """A server, as ``server.toml`` and the options of ``specfed server`` describe it."""

    hint: ClassVar[str] = "'specfed server --help' lists all keys."
    paths: ClassVar[tuple[str, ...]] = ("runs", "state", "tls-ca", "tls-cert", "tls-key")

    host: str = Field("0.0.0.0", description="address that nodes dial")
    port: Port = Field(9092, description="port that nodes dial")
    control_host: str = Field("127.0.0.1", description="address that runs are started at")
    control_port: Port = Field(8000, description="port that runs are started at")
    health: str = Field("", description="HOST:PORT of the gRPC health endpoint; empty is none")
    runs: str = Field("runs", description="folder that the run folders go to")
    state: str = Field("", description="folder in which enrolments survive a restart")
    tls_ca: str = Field("", description="certificate of the CA that vouches for the server")
    tls_cert: str = Field("", description="the server's certificate")
    tls_key: str = Field("", description="the key of the server's certificate")
    any_node: bool = Field(False, description="take nodes that are not enrolled")
    insecure: bool = Field(False, description="talk without encryption")
    log_format: LogFormat = Field("human", description="human or json")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.port == self.control_port:
            raise ValueError(
                f"--port and --control-port are both {self.port}; nodes and runs need a port each"
            )
        tls = {"--tls-ca": self.tls_ca, "--tls-cert": self.tls_cert, "--tls-key": self.tls_key}
        _one_way(self.insecure, any(tls.values()), "--tls-ca, --tls-cert and --tls-key")
        missing = [key for key, value in tls.items() if not (value or self.insecure)]
        if missing:
            raise ValueError(f"TLS also needs {' and '.join(missing)}")
        return self

    @property
    def fleet(self) -> Address:
        """Where nodes dial."""
        return Address(self.host, self.port)

    @property
    def control(self) -> Address:
        """Where runs are started."""
        return Address(self.control_host, self.control_port)

    @property
    def enrolled_only(self) -> bool:
        """Whether nodes need an enrolled key."""
        return not (self.any_node or self.insecure)

    @property
    def state_folder(self) -> Path | None:
        """Where the server keeps its database; None to keep none.

        An encrypted server that is told nothing else keeps it in ``state``, since an enrolment that is
        forgotten locks its site out.
        """
        name = self.state or ("" if self.insecure else "state")
        return Path(name) if name else None


class NodeSettings(Checked):
    """A node, as ``node.toml`` and the options of ``specfed node`` describe it."""

    hint: ClassVar[str] = "'specfed node --help' lists all keys."
    paths: ClassVar[tuple[str, ...]] = ("tls-ca", "key", "state", "policy")

    server: str = Field(description="HOST:PORT of the server, its port")
    data: Annotated[str, Field(min_length=1)] = Field(description="this site's data; they stay here")
    name: Annotated[str, Field(pattern=NAME_PATTERN)] = Field(
        description="this site's name, the one that its key is enrolled under"
    )
    part: str = Field("", description="use only a part of the data, such as 1/3")
    alpha: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Dirichlet parameter of part; 0 makes equal parts"
    )
    part_seed: int = Field(0, description="seed of part, the same on all nodes")
    device: Annotated[str, Field(pattern=DEVICE_PATTERN)] = Field(
        "auto", description="auto, cpu, cuda or cuda:1"
    )
    validation: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.1, description="share of the data kept to test models on"
    )
    threads: Annotated[int, Field(ge=0, le=1024)] = Field(
        0, description="CPU threads for training; 0 leaves it to the run"
    )
    state: str = Field("", description="folder for what algorithms remember between rounds")
    policy: str = Field("", description="the site's policy file; empty allows everything")
    tls_ca: str = Field("", description="certificate of the CA that vouches for the server")
    key: str = Field("", description="this node's private key, whose public half is enrolled")
    health: str = Field("", description="HOST:PORT of the gRPC health endpoint; empty is none")
    insecure: bool = Field(False, description="talk without encryption")
    log_format: LogFormat = Field("human", description="human or json")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _one_way(self.insecure, bool(self.tls_ca), "--tls-ca")
        if self.insecure and self.key:
            raise ValueError("a key is of no use without encryption; leave out --key or --insecure")
        return self

    def config(self) -> NodeConfig:
        """What the node says of itself to a run."""
        keys = ("name", "data", "device", "validation", "threads", "state", "policy")
        return NodeConfig.read({key: getattr(self, key) for key in keys}, "the node's settings")

    def listed_apps(self) -> dict[str, str]:
        """The environment that keeps other apps than those of the policy from being loaded.

        Raises ConfigError for a policy that cannot be read.
        """
        apps = read_policy(self.policy).apps
        return {APPS: ",".join(apps)} if apps else {}


Settings = TypeVar("Settings", ServerSettings, NodeSettings)


def read_settings(kind: type[Settings], file: Path | None, options: Mapping[str, Value | None]) -> Settings:
    """Settings from an optional TOML file and the options that were given, which win.

    Relative paths in the file begin at its folder. Raises ConfigError that names the file and line, or the
    command line.
    """
    values, places = read_file(file, "configuration file") if file else ({}, {})
    given = {key: value for key, value in options.items() if value is not None}
    if file:
        values = {key: _placed(kind, key, value, file.resolve().parent) for key, value in values.items()}
    for key, field in kind.model_fields.items():
        if field.is_required() and key not in values and key not in given:
            where = f"in {file}, and no --{key} was given" if file else f"on the command line; give --{key}"
            raise ConfigError(f'"{key}" is missing {where}')
    own = {key: place for key, place in places.items() if key not in given}
    return check(kind, {**values, **given}, own)


def _placed(kind: type[Settings], key: str, value: Value, folder: Path) -> Value:
    """A path of the file as an absolute one; everything else as it is."""
    if not isinstance(value, str) or not value:
        return value
    try:
        beside = folder / Path(value).expanduser()
    except RuntimeError:
        raise ConfigError(f'"{key}" is "{value}", and there is no such home folder') from None
    named = key == "data" and not is_plugin(value) and _there(beside)  # else a data set's name
    return str(beside) if key in kind.paths or named else value


def _there(path: Path) -> bool:
    """Whether there is something, or may be, in a closed folder."""
    try:
        path.stat()
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _one_way(insecure: bool, tls: bool, keys: str) -> None:
    """Raises ValueError for both ways or neither."""
    if insecure == tls:
        both = "both were given" if tls else "neither was given"
        raise ValueError(f"choose {keys} for an encrypted connection, or --insecure; {both}")


# --- before a start ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """A node's own key and the CA it trusts; neither in an insecure deployment."""

    ca: Path | None = None
    key: Path | None = None


def server_tls(settings: ServerSettings) -> tuple[ServerTls | None, list[str]]:
    """The server's certificate files, None without TLS, and what to warn of.

    Raises ConfigError for a certificate that nodes would refuse, or files that do not belong together.
    """
    if settings.insecure:
        return None, []
    tls = ServerTls(Path(settings.tls_ca), Path(settings.tls_cert), Path(settings.tls_key))
    authorities, chain = reading.read_certificates(tls.ca), reading.read_certificates(tls.certificate)
    what = f"certificate {tls.certificate}"
    expired = checking.expiry_problem(chain[0], what)
    _require(
        expired and f"{expired}; 'specfed certs renew' makes a new one",
        checking.expiry_problem(authorities[0], f"CA certificate {tls.ca}"),
        checking.chain_problem(chain, authorities, what),
        checking.key_problem(chain[0], reading.read_key(tls.key), f"key {tls.key}"),
        # The server's own processes dial it by this name, so that runs would never start.
        checking.name_problem(chain[0], settings.control.local().host, what),
    )
    warnings = [
        checking.expiry_warning(chain[0], what),
        checking.expiry_warning(authorities[0], f"CA certificate {tls.ca}"),
        checking.mode_problem(tls.key),
    ]
    return tls, [warning for warning in warnings if warning]


def node_identity(settings: NodeSettings) -> tuple[Identity, list[str]]:
    """The node's key and CA, and what to warn of. Raises ConfigError for a file that cannot be used."""
    if settings.insecure:
        return Identity(), []
    ca = Path(settings.tls_ca)
    authority = reading.read_certificates(ca, "CA certificate")[0]
    _require(checking.expiry_problem(authority, f"CA certificate {ca}"))
    warnings = [checking.expiry_warning(authority, f"CA certificate {ca}")]
    key = Path(settings.key) if settings.key else None
    if key is not None:
        reading.read_node_key(key)
        warnings.append(checking.mode_problem(key))
    return Identity(ca, key), [warning for warning in warnings if warning]


@contextmanager
def database(settings: ServerSettings) -> Iterator[Path | None]:
    """The server's database in its state folder, for this server alone; None to keep nothing.

    Raises ConfigError if the folder cannot be used, or is in use.
    """
    if settings.state_folder is None:
        yield None
        return
    folder = writable(settings.state_folder, "state", 0o700)
    with alone(folder / ".lock", f"state folder {folder} is in use by another server"):
        yield folder / DATABASE


@contextmanager
def alone_with(key: Path | None) -> Iterator[None]:
    """Holds a node's key, so that no second node starts with it. Raises ConfigError if one runs."""
    if key is None:
        yield
        return
    with alone(key, f"a node with key {key} is running on this machine already", os.O_RDONLY):
        yield


_DEVICE = """
import sys
from common.devices import resolve
from common.errors import ConfigError
from common.files import alone
try:
    resolve(sys.argv[1])
except ConfigError as error:
    sys.exit(print(error))
print("here")
"""


def require_device(device: str) -> None:
    """Raises ConfigError for a GPU that was asked for and that this machine does not have.

    Another process looks for it: PyTorch would stay in this one's memory for as long as the node lives.
    """
    if not device.startswith("cuda"):
        return
    command = [sys.executable, "-P", "-c", _DEVICE, device]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    looked = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    said = (looked.stdout or looked.stderr).strip().splitlines() or ["PyTorch says nothing"]
    if said[-1] != "here":
        raise ConfigError(said[-1])


def writable(folder: Path, key: str, mode: int = 0o777) -> Path:
    """The folder, absolute, made if it is not there. Raises ConfigError if no file can be made in it."""
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder.resolve()
    except OSError as error:
        raise ConfigError(f"{key} {folder} is no folder that can be written to: {error.strerror}") from None


def _require(*problems: str) -> None:
    for problem in problems:
        if problem:
            raise ConfigError(problem)
