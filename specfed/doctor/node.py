"""What a site operator's node needs: this machine, its files and data, and the way to the server."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from common.cache import root
from common.datasets import load
from common.errors import ConfigError, DataError, UnreachableError
from common.policy import read_policy
from common.privacy import DELTA, epsilon
from specfed.addresses import Address
from specfed.certs import checking, making, reading
from specfed.cluster import part_of, scratch
from specfed.deployment import NodeSettings
from specfed.doctor import clock, connection, machine
from specfed.doctor.finding import Finding, at_most_warning, guarded, ok, problem, warning, within
from specfed.launcher import app_files, probe, warm

DATA_SECONDS = 20.0


def findings(settings: NodeSettings) -> Iterator[Finding]:
    """What the checks of a node find, one after the other."""
    yield machine.versions(app_files.description())
    yield from files(settings)
    yield policy(settings)
    yield from privacy(settings)
    yield programs(settings)
    folders = [("state", Path(settings.state))] if settings.state else []
    yield from machine.disks(folders)
    yield at_most_warning(machine.disk("SPECFED_CACHE", root()))  # data are then read anew each time
    yield machine.device(settings.device)
    yield data(settings)
    yield from server(settings)


# --- files -------------------------------------------------------------------------------------------


def files(settings: NodeSettings) -> Iterator[Finding]:
    """The CA's certificate, the key, and what their dates say of this machine's clock."""
    if not settings.insecure:
        yield guarded("CA", "ask the coordinator for ca.crt", lambda: authority(Path(settings.tls_ca)))
    if settings.key:
        yield guarded("key file", "make one: 'specfed certs key'", lambda: key_file(Path(settings.key)))
    yield clock.own([Path(name) for name in (settings.tls_ca, settings.key) if name])


def authority(file: Path) -> Finding:
    """The certificate of the CA that this node trusts. Raises ConfigError for a file without one."""
    certificate, what = reading.read_certificates(file, "CA certificate")[0], f"CA certificate {file}"
    wrong = checking.expiry_problem(certificate, what)
    if wrong:
        fix = clock.SET if checking.is_early(certificate) else "ask the coordinator for the new ca.crt"
        return problem("CA", wrong, fix, ConfigError)
    late = checking.expiry_warning(certificate, what)
    if late:
        return warning("CA", late, "ask the coordinator for the new ca.crt")
    return ok("CA", f"{file} is valid until {certificate.not_valid_after_utc:%Y-%m-%d}")


def key_file(file: Path) -> Finding:
    """This node's private key. Raises ConfigError for a file that Flower would not take."""
    shown = reading.fingerprint(reading.read_node_key(file).public_key())
    if checking.mode_problem(file):
        return warning("key file", checking.mode_problem(file), f"chmod 600 {file}")
    return ok("key file", f"{file} is {shown}")


def policy(settings: NodeSettings) -> Finding:
    """The site's own policy, and whether it lets this version's app in."""

    def check() -> Finding:
        if not settings.policy:
            return ok("policy", "none: runs may do anything that specfed can")
        apps = read_policy(settings.policy).apps
        if not apps:
            return ok("policy", f"{settings.policy} can be read, and lets any app run")
        try:
            with scratch() as folder:
                own = app_files.app_hash(app_files.stage_app(folder / "app"))
        except OSError as error:
            text = f"{settings.policy} lists apps, but this version's cannot be staged: {error.strerror}"
            return warning("policy", text, "free some room in TMPDIR")
        if own in apps:
            return ok("policy", f"{settings.policy} lists the app of this version")
        text = f"{settings.policy} does not list the app of this version, {own}"
        return warning("policy", text, "compare 'specfed app-hash' with the coordinator's, then list it")

    return guarded("policy", "mend the policy file", check)


def privacy(settings: NodeSettings) -> Iterator[Finding]:
    """What the policy's noise comes to in one run, if it has any."""
    try:
        limits = read_policy(settings.policy)
    except ConfigError:  # said already
        return
    if not limits.noise:
        return
    spent = f"({epsilon(limits.noise, limits.max_rounds or 1):.3g}, {DELTA:g})-differentially private"
    if limits.max_rounds:
        text = (
            f"the updates of a run's {limits.max_rounds} rounds are {spent}; counts and metrics bear no noise"
        )
        yield ok("privacy", text)
    else:
        text = f"each round's update is {spent}, and nothing limits the rounds of a run"
        yield warning("privacy", text, "set max-rounds in the policy")


def programs(settings: NodeSettings) -> Finding:
    """Whether what starts apps can be executed here; a node that lists apps does not start without."""
    try:
        with scratch() as folder:
            warm.install(folder / "warm")
        return ok("programs", "programs in TMPDIR can be executed, as the start of apps needs")
    except ConfigError as error:
        text, fix = str(error), "set TMPDIR to such a folder before the node starts"
    try:
        listed = settings.listed_apps()
    except ConfigError:  # said already
        listed = {}
    if listed:
        text = f"the apps in {settings.policy} cannot be enforced: {text}"
        return problem("programs", text, fix, ConfigError)
    return warning("programs", text, fix)


# --- data --------------------------------------------------------------------------------------------


def data(settings: NodeSettings, seconds: float = DATA_SECONDS) -> Finding:
    """Whether the site's data can be read, and hold at least two classes."""
    if not settings.data:
        fix = (
            "write data = \"...\" into node.toml, or give --data to 'specfed doctor node' and 'specfed node'"
        )
        return problem("data", "no data are named", fix, ConfigError)
    fix = "name data that are there and that this user can read; the README lists the kinds"
    try:
        return guarded("data", fix, lambda: within(seconds, lambda: _data(settings)))
    except TimeoutError:
        text = f'data "{settings.data}" were not read within {seconds:g} s; nothing else is known of them'
        return warning("data", text, "start the node, which waits for them, and see")


def _data(settings: NodeSettings) -> Finding:
    examples = load(settings.data, "train")
    rows = part_of(examples, settings.part, settings.alpha, settings.part_seed)
    met = len(np.unique(examples.y[rows]))
    if examples.classes < 2:
        text = f'data "{settings.data}" have {examples.classes} class; there is nothing to tell apart'
        return problem("data", text, "name data with labels of two classes or more", DataError)
    counts = f"{len(rows):,} examples of {met} of {examples.classes} classes"
    if met < 2:
        text = f"{counts}: this node alone can learn nothing from them"
        return warning("data", text, "see that this is meant, and that the labels were read as they should")
    return ok("data", counts)


# --- the server --------------------------------------------------------------------------------------


def server(settings: NodeSettings) -> Iterator[Finding]:
    """The way to the server; then, if it can be gone, what the server says to this node's key and time."""
    ca = Path(settings.tls_ca) if settings.tls_ca else None
    try:
        address = Address.parse(settings.server)
        if ca is not None:
            reading.read_certificates(ca, "CA certificate")
    except ConfigError as error:
        yield problem("server", str(error), "mend that first; the server was not dialled", ConfigError)
        return
    if proxy := connection.proxied(address):
        yield proxy
    if (yield from connection.way(address, ca)):
        yield from admitted(address, ca, Path(settings.key) if settings.key else None)


def admitted(address: Address, ca: Path | None, file: Path | None) -> Iterator[Finding]:
    """Whether the server takes this machine's time, and this node's key."""
    try:
        key = reading.read_node_key(file) if file else making.new_key()
    except ConfigError:
        return  # said already
    early, late = probe.EARLY, probe.LATE
    with probe.fleet(address, None if ca is None else ca.read_bytes()) as channel:
        answer = probe.ask(channel, key)
        if answer == "strange":
            text = f"{address} speaks gRPC, but not as Flower 1.39 does, which this specfed is made for"
            yield problem("Flower", text, "install the same specfed on both machines", UnreachableError)
            return
        yield ok("Flower", f"{address} speaks as Flower 1.39 does; it does not tell its exact version")
        ahead = clock.difference(
            lambda shift: probe.ask(channel, key, shift) in ("enrolled", "unknown"), early, late
        )
        yield clock.compared(ahead, early, late)
        if ahead is not None and answer == "clock":
            answer = probe.ask(channel, key, ahead)
    yield enrolment(answer, file, address, ca is not None)


def enrolment(answer: probe.Answer, file: Path | None, address: Address, tls: bool) -> Finding:
    """What the server's answer to a key means; it knows none of a node without one."""
    if file is None:
        if not tls:
            return ok("key", "none, as it is without encryption")
        text = "this node has no key; whether the server takes such nodes shows only when it starts"
        return warning("key", text, "give the key whose .pub is enrolled")
    known = {
        "enrolled": ok("key", f"{file} is enrolled at {address}"),
        "unknown": problem(
            "key",
            f"{file} is not enrolled at {address}, or was revoked there",
            "let the coordinator compare 'specfed nodes', then run "
            f"'specfed enroll {file.with_suffix('.pub').name}'; one that was revoked needs a new key",
            UnreachableError,
        ),
    }
    unsure = warning("key", f"whether {file} is enrolled cannot be asked before the clocks agree", clock.SET)
    return known.get(answer, unsure)
