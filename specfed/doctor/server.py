"""What a coordinator's server needs: this machine, its certificates, database and ports."""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote

from cryptography import x509

from common.errors import ConfigError, PortError, SpecfedError, UnreachableError
from specfed import dial
from specfed.addresses import Address, can_bind
from specfed.certs import checking, making, reading
from specfed.deployment import DATABASE, ServerSettings
from specfed.doctor import clock, machine
from specfed.doctor.connection import renew_for
from specfed.doctor.finding import Finding, guarded, ok, problem, warning, within
from specfed.launcher import app_files, probe, registry

LOCK_SECONDS = 2.0
NODES_SECONDS = 5.0
_RENEW = "make a new one: 'specfed certs renew', then restart the server"


def findings(settings: ServerSettings) -> Iterator[Finding]:
    """What the checks of a server find, one after the other."""
    yield machine.versions(app_files.description())
    yield from certificates(settings)
    folder = settings.state_folder
    names = [settings.tls_ca, settings.tls_cert, settings.tls_key]
    files = [Path(name) for name in names if name] + ([folder / DATABASE] if folder else [])
    yield clock.own(files)
    folders = [("runs", Path(settings.runs))] + ([("state", folder)] if folder else [])
    yield from machine.disks(folders)
    if folder is not None:
        yield database(folder / DATABASE)
    yield exposure(settings)
    yield from ports(settings)


# --- certificates ------------------------------------------------------------------------------------


def certificates(settings: ServerSettings) -> Iterator[Finding]:
    """The server's certificate, its CA and its key, on their own and together."""
    if settings.insecure:
        yield warning("TLS", "nothing is encrypted, and anyone who reaches the port can take part", INIT)
        return
    yield guarded("certificate", _RENEW, lambda: certificate(settings))
    yield guarded("key file", "take the server.key that was made with the certificate", lambda: key(settings))


INIT = "'specfed certs init' makes what TLS needs; leave out insecure then"


def certificate(settings: ServerSettings) -> Finding:
    """Dates, CA and names of the certificate. Raises ConfigError for a file without one."""
    file, ca = Path(settings.tls_cert), Path(settings.tls_ca)
    chain, authorities = reading.read_certificates(file), reading.read_certificates(ca, "CA certificate")
    what, whose = f"certificate {file}", f"CA certificate {ca}"
    host = settings.control.local().host
    checks = (
        _dated(chain[0], what, _RENEW),
        _dated(authorities[0], whose, "make a new CA: 'specfed certs init'; sites then need its ca.crt"),
        (checking.chain_problem(chain, authorities, what), f"put the ca.crt of its CA in place of {ca}"),
        (
            checking.name_problem(chain[0], host, what),
            f"the server dials itself by this name: {renew_for(chain[0], host)}",
        ),
    )
    wrong = next(((text, fix) for text, fix in checks if text), None)
    if wrong is not None:
        return problem("certificate", *wrong, ConfigError)
    for one, which in ((chain[0], what), (authorities[0], whose)):
        if late := checking.expiry_warning(one, which):
            return warning("certificate", late, _RENEW)
    dialled = [name for name in reading.hosts_of(chain[0]) if name not in making.LOCAL_NAMES]
    until = f"until {chain[0].not_valid_after_utc:%Y-%m-%d}"
    if not dialled:
        text = f"{what} holds {until}, but for this machine alone"
        return warning("certificate", text, renew_for(chain[0], "NAME") + ", the name that nodes dial")
    return ok("certificate", f"{file} holds {until} for nodes that dial {', '.join(dialled)}")


def _dated(one: x509.Certificate, what: str, fix: str) -> tuple[str, str]:
    text = checking.expiry_problem(one, what)
    return text, clock.SET if checking.is_early(one) else fix


def key(settings: ServerSettings) -> Finding:
    """Whether the key is that of the certificate. Raises ConfigError for a file without one."""
    file, chain = Path(settings.tls_key), reading.read_certificates(Path(settings.tls_cert))
    wrong = checking.key_problem(chain[0], reading.read_key(file), f"key {file}")
    if wrong:
        fix = f"take the key that was made with {settings.tls_cert}, or make both anew: 'specfed certs init'"
        return problem("key file", wrong, fix, ConfigError)
    if checking.mode_problem(file):
        return warning("key file", checking.mode_problem(file), f"chmod 600 {file}")
    return ok("key file", f"{file} belongs to the certificate")


# --- state -------------------------------------------------------------------------------------------

_DATABASE = {
    "SQLITE_BUSY": ("is locked by another process", "end what holds it ('fuser FILE' shows it)"),
    "SQLITE_NOTADB": (
        "is no database",
        "put the backup of FILE back, or move it away and enrol the sites anew",
    ),
    "SQLITE_CORRUPT": ("is damaged", "put the backup of FILE back, or move it away and enrol the sites anew"),
    "SQLITE_READONLY": ("cannot be written to", "let this user write to FILE and its folder"),
    "SQLITE_CANTOPEN": ("cannot be opened", "let this user read and write FILE and its folder"),
}


def database(file: Path) -> Finding:
    """Whether the server's database can be written to. Nothing is."""
    try:
        file.stat()
    except FileNotFoundError:
        return ok("database", f"{file} is made at the first start")
    except OSError:
        what, fix = _DATABASE["SQLITE_CANTOPEN"]
        return problem("database", f"{file} {what}", fix.replace("FILE", str(file)), ConfigError)
    places = (file, file.parent)  # SQLite keeps its journal beside the file
    if not all(os.access(place, os.W_OK, effective_ids=True) for place in places):
        text, fix = _DATABASE["SQLITE_READONLY"]
        return problem("database", f"{file} {text}", fix.replace("FILE", str(file)), ConfigError)
    try:
        link = sqlite3.connect(
            f"file:{quote(str(file))}?mode=rw", uri=True, timeout=LOCK_SECONDS, isolation_level=None
        )
        with closing(link):
            link.execute("BEGIN IMMEDIATE")
            link.execute("SELECT count(*) FROM sqlite_master")
            link.execute("ROLLBACK")
    except sqlite3.Error as error:
        what, fix = _DATABASE.get(error.sqlite_errorname, (f"cannot be used: {error}", "look at FILE"))
        return problem("database", f"{file} {what}", fix.replace("FILE", str(file)), ConfigError)
    return ok("database", f"{file} can be read and written")


def in_use(folder: Path) -> bool:
    """Whether a server runs with this state folder."""
    try:
        with (folder / ".lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


# --- ports -------------------------------------------------------------------------------------------


def exposure(settings: ServerSettings) -> Finding:
    """Whether others than this machine reach what starts runs, and who may take part."""
    host = settings.control_host
    if not _loopback(host):
        text = f"runs are started at {settings.control}: whoever reaches it runs code on every node"
        return warning(
            "control port", text, 'take control-host = "127.0.0.1", or keep others off by a firewall'
        )
    if settings.any_node and not settings.insecure:
        text = "any-node: whoever holds the CA's certificate can take part"
        return warning("control port", text, "leave out any-node, and enrol the sites' keys")
    return ok("control port", f"runs are started at {settings.control}, from this machine alone")


def _loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def ports(settings: ServerSettings) -> Iterator[Finding]:
    """Whether the server's ports are free, its own or somebody else's; who is enrolled, if it runs."""
    fleet, control = settings.fleet, settings.control
    shown = guarded("port", "", lambda: port("port", fleet, "--port", lambda: own_fleet(settings)))
    runs = guarded(
        "runs port", "", lambda: port("runs port", control, "--control-port", lambda: own_control(settings))
    )
    yield shown
    yield runs
    folder = settings.state_folder
    usable = shown.state == runs.state == "ok"  # free, or ours
    running = usable and not any(can_bind(address) for address in (fleet, control))
    if folder is not None and in_use(folder) and not running:
        text = f"state folder {folder} is in use by another server, or one on other ports"
        yield problem("server", text, "end that server, or name another state folder", ConfigError)
    if settings.health:
        yield guarded("health port", "", lambda: health(settings, running))
    if running:
        yield enrolled(settings)


def port(name: str, address: Address, option: str, ours: Callable[[], str]) -> Finding:
    """Whether ``address`` is free, or else ours: ``ours`` is empty if it is, or says why it is not.

    Raises ConfigError for a host that is not this machine's, PortError for a port that takes more rights.
    """
    if can_bind(address):
        return ok(name, f"{address} is free: no server runs there")
    why_not = ours()
    if not why_not:
        return ok(name, f"our running server answers at {address}")
    text = f"{address} is in use, {why_not}"
    fix = f"end what listens there ('ss -ltnp' shows it), or choose another port with {option}"
    return problem(name, text, fix, PortError)


def own_fleet(settings: ServerSettings) -> str:
    """Why what listens at the nodes' port is not this server; empty if it is."""
    address = settings.fleet.local()
    foreign = _foreign(settings, address)
    if foreign:
        return foreign
    ca = None if settings.insecure else Path(settings.tls_ca).read_bytes()
    with probe.fleet(address, ca) as channel:
        if settings.insecure and not probe.speaks_grpc(channel):
            return "by what does not speak gRPC"
    return ""


def own_control(settings: ServerSettings) -> str:
    """Why what listens where runs are started is not this server; empty if it is."""
    address = settings.control.local()
    foreign = _foreign(settings, address)
    if foreign:
        return foreign
    context = None if settings.insecure else dial.trusting(Path(settings.tls_ca))
    return "" if dial.answers(address, context) else "by what takes no runs"


def _foreign(settings: ServerSettings, address: Address) -> str:
    shown = dial.certificate_at(address)
    if settings.insecure:
        return "" if shown is None else "by a server with TLS"
    if shown is None:
        return "by what speaks no TLS"
    own = reading.read_certificates(Path(settings.tls_cert))[0]
    if shown == own:
        return ""
    if shown.public_key() == own.public_key():
        return "by our server with its certificate of before; restart it"
    return "by a server with another certificate"


def health(settings: ServerSettings, running: bool) -> Finding:
    """Whether the health endpoint's port is free, or taken while the server runs."""
    address = Address.parse(settings.health)
    return port("health port", address, "--health", lambda: "" if running else "and our server does not run")


def enrolled(settings: ServerSettings) -> Finding:
    """How many nodes the running server knows."""
    ca = None if settings.insecure else Path(settings.tls_ca)
    try:
        known = within(NODES_SECONDS, lambda: registry.nodes(settings.control.local(), ca))
    except (SpecfedError, TimeoutError) as error:
        fix = "look at the server's log in its runs folder, then restart it"
        return problem("nodes", f"the server does not list its nodes: {error}", fix, UnreachableError)
    states = [node.state for node in known if node.state != "revoked"]
    text = f"{len(states)} known, {states.count('online')} online"
    if not states and settings.enrolled_only:
        return warning("nodes", f"{text}: nobody can take part", "'specfed enroll SITE.pub' for each site")
    return ok("nodes", text)
