"""The way from a node to its server, layer by layer: name, port, TLS, gRPC."""

import errno
import os
import socket
import ssl
from collections.abc import Generator
from pathlib import Path
from urllib.request import proxy_bypass

from cryptography import x509

from common.errors import UnreachableError
from specfed.addresses import Address
from specfed.certs import checking, making, reading
from specfed.dial import DIAL_SECONDS, certificate_at, handshake, trusting
from specfed.doctor.clock import SET
from specfed.doctor.finding import Finding, ok, problem, warning, within
from specfed.launcher import probe

_RENEW = "the coordinator makes a new one with 'specfed certs renew'"


def way(address: Address, ca: Path | None) -> Generator[Finding, None, bool]:
    """The findings of the layers, from below, up to the first problem; whether all of them stand."""
    for layer in (resolves, accepts, encrypts, speaks):
        finding = layer(address, ca)
        yield finding
        if finding.state == "problem":
            return False
    return True


def proxied(address: Address) -> Finding | None:
    """That a node dials the server through a proxy, if it does; gRPC takes the first of these variables."""
    name, _ = _first("grpc_proxy", "https_proxy", "http_proxy")
    _, spared = _first("no_grpc_proxy", "no_proxy")
    named = ",".join(host for host in spared.split(",") if host.strip() != "*")  # gRPC knows no "*"
    if not name or proxy_bypass(address.host, {"no": named}):
        return None
    return warning(
        "proxy",
        f"{name} is set: the node dials {address.host} through that proxy",
        f"unless this is meant, start the node with no_proxy={address.host}",
    )


def _first(*names: str) -> tuple[str, str]:
    """The first of these variables that is set, with its value; twice nothing if none is."""
    return next(((name, os.environ[name]) for name in names if os.environ.get(name)), ("", ""))


def resolves(address: Address, _ca: Path | None = None) -> Finding:
    """Whether the server's name is known here."""
    try:
        found = within(
            DIAL_SECONDS, lambda: socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        )
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, socket.gaierror) else str(error)
        fix = "look for a slip in 'server', or ask for the name or IP address that the server has from here"
        return problem("name", f"{address.host} cannot be resolved: {why}", fix, UnreachableError)
    return ok(
        "name", f"{address.host} is {', '.join(dict.fromkeys(str(entry[4][0]) for entry in found))} here"
    )


def accepts(address: Address, _ca: Path | None = None) -> Finding:
    """Whether a connection can be made to the server's port."""
    try:
        socket.create_connection((address.host, address.port), DIAL_SECONDS).close()
    except ConnectionRefusedError:
        fix = "start the server ('specfed server'), and dial its --port, 9092 if not told otherwise"
        return problem("port", f"nothing listens at {address}: it is closed", fix, UnreachableError)
    except OSError as error:
        silent = isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT
        why = f"no answer within {DIAL_SECONDS:.0f} s" if silent else error.strerror
        fix = f"a firewall may drop it: let this machine out to port {address.port}, and into the server"
        return problem("port", f"{address} cannot be reached: {why}", fix, UnreachableError)
    return ok("port", f"{address} takes connections")


def encrypts(address: Address, ca: Path | None) -> Finding:
    """Whether both ends agree on TLS, and the server's certificate is one to trust."""
    shown = certificate_at(address)
    if ca is None:
        return _plain(address, shown)
    if shown is None:
        with probe.fleet(address, None) as channel:
            plain = probe.speaks_grpc(channel)
        who = "the server speaks without TLS" if plain else "it is no server of ours"
        text = f"this node speaks TLS, and what listens at {address} does not: {who}"
        fix = (
            "start the server without --insecure, with 'server.toml'"
            if plain
            else "look for a slip in 'server'"
        )
        return problem("TLS", text, fix, UnreachableError)
    return _trusted(address, shown, ca)


def _plain(address: Address, shown: x509.Certificate | None) -> Finding:
    if shown is None:
        return warning("TLS", "nothing is encrypted", "give tls-ca and key in place of insecure")
    text = f"this node speaks without TLS, and the server at {address} speaks TLS"
    return problem("TLS", text, "leave out insecure, and give tls-ca and key", UnreachableError)


def _trusted(address: Address, shown: x509.Certificate, ca: Path) -> Finding:
    """Whether who trusts ``ca`` trusts the certificate that was shown."""
    what = "the server's certificate"
    why = refusal(address, ca)
    if not why:
        late = checking.expiry_warning(shown, what)
        if late:
            return warning("TLS", late, _RENEW)
        return ok("TLS", f"{what} holds for {address.host} until {shown.not_valid_after_utc:%Y-%m-%d}")
    checks = (
        (checking.expiry_problem(shown, what), SET if checking.is_early(shown) else _RENEW),
        (
            checking.chain_problem([shown], reading.read_certificates(ca, "CA certificate"), what),
            f"ask the coordinator for the ca.crt of this federation in place of {ca}, and see that the "
            "server is the right one",
        ),
        (
            checking.name_problem(shown, address.host, what),
            f"dial one of these names, or let the coordinator add it: {renew_for(shown, address.host)}",
        ),
        (f"{what} is refused: {why}", "ask the coordinator for a certificate of 'specfed certs'"),
    )
    text, fix = next((text, fix) for text, fix in checks if text)
    return problem("TLS", text, fix, UnreachableError)


def renew_for(certificate: x509.Certificate, host: str) -> str:
    """The command that adds ``host`` to a certificate's names; it takes all of them."""
    names = [name for name in reading.hosts_of(certificate) if name not in making.LOCAL_NAMES]
    return f"'specfed certs renew {' '.join(f'--host {name}' for name in [*names, host])}'"


def refusal(address: Address, ca: Path) -> str:
    """Why a TLS client that trusts ``ca`` refuses what ``address`` shows; empty if it does not."""
    try:
        handshake(address, trusting(ca))
        return ""
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except OSError as error:
        return str(error)


def speaks(address: Address, ca: Path | None) -> Finding:
    """Whether it is a server of ours that listens there."""
    with probe.fleet(address, None if ca is None else ca.read_bytes()) as channel:
        if probe.speaks_grpc(channel):
            return ok("gRPC", f"{address} speaks gRPC")
    text = f"what listens at {address} does not speak gRPC, as a server of ours does with its nodes"
    fix = "dial the server's --port, 9092 if not told otherwise, not its --control-port"
    return problem("gRPC", text, fix, UnreachableError)
