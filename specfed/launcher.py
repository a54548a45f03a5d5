"""Flower's processes: how they are started, watched and stopped, and how runs are handed to them.

All of Flower's flags, ports and environment variables stand here and in ``launcher_process``. Start
processes from the main thread: Linux ends a child when the thread that started it ends.
"""

import fcntl
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Literal

from cryptography import x509

from common.config import Value
from common.errors import ConfigError, PortError, RunFailed, UnreachableError
from specfed import certs, launcher_naps, launcher_warm
from specfed.launcher_process import PARENT

START_SECONDS = 60.0  # for a server to come up on a busy machine
STOP_SECONDS = 9.0  # then a process group is killed; longer than launcher_process needs
DIAL_SECONDS = 5.0
DRAIN_SECONDS = 2.0
SUBMIT_SECONDS = 120.0

Relay = Callable[[str], None]  # takes a line of a process's output, in a thread of its own

LOOPBACK = "127.0.0.1"
_PORTS = range(20_000, 32_000)  # below the ports that Linux gives to outgoing connections
_APP_PACKAGES = ("common", "client_app", "strategies", "server_app")
_WRAPPER = (sys.executable, "-P", "-m", "specfed.launcher_process")
_SERVER = "specfed"  # name of the one connection in the configuration of Flower's command line
Parting = Literal["refused", "forgotten"]  # a node never was accepted; it was, and is no more
_PARTINGS: dict[str, Parting] = {
    "[code: 2001]": "refused",  # a node without a key
    "[code: 2004]": "refused",  # a key that is not enrolled, or in use
    "terminated gracefully": "forgotten",
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TELLING = (re.compile(r"already in use|[Ee]rror:|does not"), re.compile(r"\bERROR\b"))  # first ones first
_LOG_PREFIX = re.compile(r"^\s*(?:\S+Z )?(?:INFO|WARNING|ERROR|CRITICAL)\s*(?:\[[\w.]+\])?\s*:?\s*")


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


@dataclass(frozen=True)
class ServerTls:
    """Certificate files of a server."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Process:
    """One of Flower's processes with all that it has started."""

    name: str
    popen: "subprocess.Popen[bytes]"
    log: Path | None  # None: it writes to our own terminal
    reader: threading.Thread | None = None  # hands on its output

    def running(self) -> bool:
        """Whether it is still there."""
        return self.popen.poll() is None

    def kill(self) -> None:
        """End it at once and without a goodbye, as a crash would."""
        if self.running():
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def drain(self) -> None:
        """Wait a moment for the last of its output to be handed on, after it has ended."""
        if self.reader is not None:
            self.reader.join(DRAIN_SECONDS)

    def last_words(self) -> str:
        """The last line of its log that says something."""
        self.drain()
        text = "its output says why" if self.log is None else last_line(self.log)
        return text or f"exit code {self.popen.poll()}, and nothing in {self.log}"


@dataclass(frozen=True)
class Server:
    """A running server."""

    process: Process
    fleet: Address  # nodes dial it
    control: Address  # runs are started here


# --- ports -------------------------------------------------------------------------------------------


@contextmanager
def reserve_port() -> Iterator[int]:
    """A free port on loopback that no other reservation on this machine gets while this one lasts.

    It is free to bind, not bound. Raises PortError if none can be had.
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
    folder = Path(tempfile.gettempdir()) / f"specfed-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    file = (folder / str(port)).open("wb")
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
    except OSError as error:
        raise ConfigError(f'host "{address.host}" cannot be resolved: {error.strerror}') from None
    family, kind, _, _, target = known[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(target)
        except PermissionError:
            raise PortError(f"port {address.port} may not be bound without more rights") from None
        except OSError as error:
            if error.errno == 99:  # EADDRNOTAVAIL
                raise ConfigError(f'host "{address.host}" is not an address of this machine') from None
            return False
    return True


# --- server and nodes --------------------------------------------------------------------------------


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
    process = _spawn("server", "superlink", arguments, folder, log, environment or {}, relay)
    return Server(process, fleet, control)


def wait_ready(server: Server, tls: ServerTls | None = None) -> None:
    """Wait until nodes can dial the server and runs can be started on it.

    Raises UnreachableError if it ends or does not come up, and ConfigError if its certificate does not
    hold for this machine's own name of it.
    """
    deadline = time.monotonic() + START_SECONDS
    while not (accepts(server.fleet.local(), 1.0) and _healthy(server.control.local(), tls)):
        require_running(server.process)
        if time.monotonic() > deadline:
            raise UnreachableError(f"the server did not come up within {START_SECONDS:.0f} seconds")
        time.sleep(0.05)


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
    return _spawn(str(config["name"]), "supernode", arguments, folder, log, environment or {}, relay)


def _health(address: Address | None) -> list[str]:
    return [] if address is None else ["--health-server-address", str(address)]


def spawn_warm(folder: Path, log: Path | None = None) -> tuple[list[Process], dict[str, str]]:
    """Start the process that app processes are forked from, where that can be had.

    Returns it, if there is one, and the environment that servers and nodes need to make use of it. They
    do without it until it is ready.
    """
    address = launcher_warm.install(folder / "warm")
    if address is None:
        return [], {}
    process = _spawn("warm start", "warm", [str(address)], folder, log, {})
    launcher_naps.install(address.parent)
    path = os.pathsep.join([str(address.parent), _environment(folder)["PATH"]])
    return [process], {"PATH": path}


def online(node: Process) -> bool:
    """Whether the server has accepted the node, by the node's log."""
    return node.log is not None and "SuperNode ID" in node.log.read_text(encoding="utf-8", errors="replace")


def parting(node: Process) -> Parting | None:
    """Why a node that ended by itself did so, if the server sent it away."""
    node.drain()
    text = "" if node.log is None else node.log.read_text(encoding="utf-8", errors="replace")
    return next((parting for sign, parting in _PARTINGS.items() if sign in text), None)


def require_running(process: Process) -> None:
    """Raises PortError or UnreachableError with the process's last words if it has ended."""
    if process.running():
        return
    words = process.last_words()
    kind = PortError if "in use" in words else UnreachableError
    raise kind(f"{process.name} ended by itself: {words}")


def stop(processes: Iterable[Process]) -> None:
    """End processes and all that they have started. Returns when none of it is left."""
    running = [process for process in processes if process.running()]
    for process in running:
        process.popen.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for process in running:
        try:
            process.popen.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
        process.drain()


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


def toml(value: Value) -> str:
    """A value as TOML writes it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def _spawn(
    name: str,
    role: str,
    arguments: list[str],
    folder: Path,
    log: Path | None,
    extra: Mapping[str, str],
    relay: Relay | None = None,
) -> Process:
    home = folder / "flower"
    home.mkdir(parents=True, exist_ok=True)
    command = [*_WRAPPER, role, *arguments]
    environment = _environment(home)
    programs = launcher_naps.install(home / "programs")
    environment["PATH"] = os.pathsep.join([str(programs), environment["PATH"]])
    with _output(log) as output:
        popen = subprocess.Popen(
            command,
            env={**environment, PARENT: str(os.getpid()), **extra},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if relay else output,
            stderr=subprocess.STDOUT if output or relay else None,
            start_new_session=True,
        )
    reader = None
    if relay is not None:
        reader = threading.Thread(target=_read, args=(popen, log, relay), daemon=True)
        reader.start()
    return Process(name, popen, log, reader)


def _read(popen: "subprocess.Popen[bytes]", log: Path | None, relay: Relay) -> None:
    """Hand on each line that a process and its own processes print, and keep it in ``log``."""
    assert popen.stdout is not None
    with popen.stdout as lines, (log or Path(os.devnull)).open("ab", buffering=0) as file:
        for line in lines:
            file.write(line)
            relay(line.decode("utf-8", errors="replace").rstrip("\n"))


@contextmanager
def _output(log: Path | None) -> Iterator[IO[bytes] | None]:
    if log is None:
        yield None
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        yield file


def _environment(home: Path) -> dict[str, str]:
    """What each of Flower's processes gets: nothing sent home, no shared state, its commands found."""
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
    }


def python_path() -> dict[str, str]:
    """Lets a node or server import the user's own module:function from the current folder."""
    return {"PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])}


def last_line(log: Path) -> str:
    """The last line of a log file that tells of an error, else the last one; without colours and prefixes."""
    text = _COLOUR.sub("", log.read_text(encoding="utf-8", errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ranked = [[line for line in lines if pattern.search(line)] for pattern in _TELLING]
    telling = next((found for found in ranked if found), lines or [""])
    return _LOG_PREFIX.sub("", telling[-1])


# --- reaching a server -------------------------------------------------------------------------------


def require_fleet(address: Address, ca: Path | None) -> str:
    """Raises UnreachableError if no server answers nodes at ``address``, encrypted if ``ca`` is given.

    Returns a warning if its certificate is about to expire, else an empty text.
    """
    import grpc

    if not accepts(address, DIAL_SECONDS):
        raise UnreachableError(f"no server answers at {address}; is it running, and is the port open?")
    if ca is None:
        channel = grpc.insecure_channel(str(address))
    else:
        channel = grpc.secure_channel(str(address), grpc.ssl_channel_credentials(ca.read_bytes()))
    try:
        grpc.channel_ready_future(channel).result(DIAL_SECONDS)
    except grpc.FutureTimeoutError:
        how = "without TLS" if ca is None else f"with a certificate that {ca} vouches for"
        raise UnreachableError(
            certificate_problem(address, ca)
            or f"what listens at {address} does not speak gRPC {how}; nodes dial the server's --port"
        ) from None
    finally:
        channel.close()
    shown = None if ca is None else certificate_at(address)
    return "" if shown is None else certs.expiry_warning(shown, f"the certificate of the server at {address}")


def require_control(address: Address, ca: Path | None) -> None:
    """Raises UnreachableError if no server takes runs at ``address``."""
    if not accepts(address, DIAL_SECONDS):
        raise UnreachableError(
            f"no server answers at {address}; start one with 'specfed server', or name it with --server"
        )
    context = None if ca is None else ssl.create_default_context(cafile=str(ca))
    if not answers(address, context):
        how = "without TLS" if ca is None else f"with a certificate that {ca} vouches for"
        raise UnreachableError(
            certificate_problem(address, ca)
            or f"what listens at {address} takes no runs {how}; runs go to the server's --control-port"
        )


def certificate_problem(address: Address, ca: Path | None) -> str:
    """Why who trusts ``ca`` does not trust the certificate shown at ``address``; empty if that is not it."""
    certificate = None if ca is None else certificate_at(address)
    if ca is None or certificate is None:
        return ""
    what = f"the certificate of the server at {address}"
    return (
        certs.expiry_problem(certificate, what)
        or certs.chain_problem([certificate], certs.read_certificates(ca), what)
        or certs.name_problem(certificate, address.host, what)
    )


def certificate_at(address: Address) -> x509.Certificate | None:
    """The certificate that a server shows, unchecked; None if it shows none."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with (
            socket.create_connection((address.host, address.port), DIAL_SECONDS) as raw,
            context.wrap_socket(raw, server_hostname=address.host) as wrapped,
        ):
            shown = wrapped.getpeercert(binary_form=True)
    except OSError:
        return None
    return x509.load_der_x509_certificate(shown) if shown else None


def accepts(address: Address, timeout: float) -> bool:
    """Whether anything takes connections at ``address``."""
    try:
        socket.create_connection((address.host, address.port), timeout).close()
    except OSError:
        return False
    return True


def _healthy(control: Address, tls: ServerTls | None) -> bool:
    if tls is None:
        return answers(control, None)
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    if not answers(control, unchecked):
        return False
    if not answers(control, ssl.create_default_context(cafile=str(tls.ca))):
        # The server's own processes dial it by this name, so that runs would never start.
        raise ConfigError(f"certificate {tls.certificate} does not hold for {control.host} under {tls.ca}")
    return True


def answers(control: Address, context: ssl.SSLContext | None) -> bool:
    """Whether a server takes runs at ``control``, over TLS if there is a context for it."""
    scheme = "http" if context is None else "https"
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        url = f"{scheme}://{control}/health"
        with urllib.request.build_opener(*handlers).open(url, timeout=DIAL_SECONDS) as reply:
            return bool(reply.status == 200)
    except (OSError, ValueError):  # urllib's errors and those of TLS and HTTP are OSError
        return False


# --- runs --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Control:
    """The way to a server that takes runs. ``home`` takes scratch files and must outlive its use."""

    address: Address
    ca: Path | None
    home: Path

    def flwr(self, *arguments: str, output: IO[bytes] | int | None = None) -> "subprocess.Popen[bytes]":
        """Start Flower's own command line with this server as its only one; it writes to ``output``."""
        self.home.mkdir(parents=True, exist_ok=True)
        trust = "insecure = true" if self.ca is None else f"root-certificates = {toml(str(self.ca))}"
        connection = f'[superlink.{_SERVER}]\naddress = "{self.address}"\n{trust}\n'
        (self.home / "config.toml").write_text(connection, encoding="utf-8")
        return subprocess.Popen(
            [*_WRAPPER, "flwr", *arguments],
            env={**_environment(self.home), PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


@dataclass(frozen=True)
class RunStatus:
    """How Flower sees a run."""

    state: str  # "pending", "starting", "running", "finished:completed", "finished:failed", ...
    details: str

    @property
    def finished(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state.startswith("finished")


def stage_app(folder: Path) -> Path:
    """Copy what nodes and server run, and nothing else, into ``folder``; the path to hand to ``submit``."""
    for package in _APP_PACKAGES:
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None, f"package {package} is part of specfed"
        shutil.copytree(
            Path(spec.origin).parent, folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(description() / name, folder / name)
    return folder


def description() -> Path:
    """The folder with specfed's own ``pyproject.toml``."""
    installed = Path(__file__).parent / "app"  # there in an installed package
    return installed if installed.is_dir() else Path(__file__).parent.parent


def app_hash(folder: Path) -> str:
    """The SHA-256 of the app in ``folder`` as it travels to the nodes."""
    from flwr.cli.build import build_fab_from_disk

    return sha256(build_fab_from_disk(folder)).hexdigest()


def submit(control: Control, app: Path, config: Mapping[str, Value]) -> str:
    """Start a run of the app folder ``app``; its id on the server.

    Raises UnreachableError if the server cannot be reached, RunFailed if it refuses.
    """
    control.home.mkdir(parents=True, exist_ok=True)
    file = control.home / "run.toml"
    file.write_text("".join(f"{key} = {toml(value)}\n" for key, value in config.items()), encoding="utf-8")
    reply = _ask(control, "run", str(app), _SERVER, "--run-config", str(file))
    return str(reply["run-id"])


def stop_run(control: Control, run: str) -> None:
    """Ask the server to end a run. One that has already ended stays as it is."""
    control.flwr("stop", run, _SERVER, output=subprocess.DEVNULL).wait(SUBMIT_SECONDS)


def status(control: Control, run: str) -> RunStatus:
    """How a run stands. Raises UnreachableError or RunFailed if the server does not say."""
    reply = _ask(control, "ls", _SERVER, "--run-id", run)
    found = reply["runs"][0]
    return RunStatus(found["status"], found["status-details"])


def keep_log(control: Control, run: str, file: Path) -> Process:
    """Copy a run's log into ``file`` as it comes; the process that does so ends when the run has ended."""
    with _output(file) as output:
        return Process("log", control.flwr("log", run, _SERVER, "--stream", output=output), file)


def log_lines(control: Control, run: str) -> Iterator[str]:
    """The lines of a run's log from its start, as they come, until the run has ended.

    They are here about half a second after they were printed. When the connection breaks, the log is
    asked for again and goes on where it stopped. Raises UnreachableError if the server stays away for
    a minute, RunFailed if it no longer knows the run.
    """
    seen = 0
    while True:
        process = control.flwr("log", run, _SERVER, "--stream", output=subprocess.PIPE)
        assert process.stdout is not None
        try:
            for number, line in enumerate(process.stdout):
                if number >= seen:
                    seen = number + 1
                    yield line.decode("utf-8", errors="replace")
            if process.wait() == 0:
                return
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()
        if _wait_for_status(control, run).finished:
            return


def _wait_for_status(control: Control, run: str) -> RunStatus:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return status(control, run)
        except UnreachableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def _ask(control: Control, *arguments: str) -> dict[str, Any]:
    """The answer to one of Flower's commands."""
    process = control.flwr(*arguments, "--format", "json", output=subprocess.PIPE)
    try:
        output, _ = process.communicate(timeout=SUBMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"the server at {control.address} did not answer in time") from None
    finally:
        process.terminate()
        process.wait()
    try:
        text = output.decode("utf-8", errors="replace")
        reply: dict[str, Any] = json.loads(text[text.index("{") :])
    except ValueError:
        raise RunFailed(f"'flwr {arguments[0]}' said nothing that can be read: {output[-200:]!r}") from None
    if reply.get("success"):
        return reply
    message = " ".join(str(reply.get("error-message", reply)).split())
    if "unavailable" in message:
        raise UnreachableError(f"no server answers at {control.address}")
    raise RunFailed(f"the server at {control.address} refused '{arguments[0]}': {message}")
