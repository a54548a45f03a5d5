"""What answers at a server's address, and whether its certificate is to be trusted."""

import socket
import ssl
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

from cryptography import x509

from common.errors import UnreachableError
from specfed.addresses import Address
from specfed.certs import checking, reading

DIAL_SECONDS = 5.0


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
    return (
        "" if shown is None else checking.expiry_warning(shown, f"the certificate of the server at {address}")
    )


def require_control(address: Address, ca: Path | None) -> None:
    """Raises UnreachableError if no server takes runs at ``address``."""
    if not accepts(address, DIAL_SECONDS):
        raise UnreachableError(
            f"no server answers at {address}; start one with 'specfed server', or name it with --server"
        )
    context = None if ca is None else trusting(ca)
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
        checking.expiry_problem(certificate, what)
        or checking.chain_problem([certificate], reading.read_certificates(ca), what)
        or checking.name_problem(certificate, address.host, what)
    )


def certificate_at(address: Address) -> x509.Certificate | None:
    """The certificate that a server shows, unchecked; None if it shows none."""
    try:
        shown = handshake(address, unchecked())
    except OSError:
        return None
    return x509.load_der_x509_certificate(shown) if shown else None


def trusting(ca: Path) -> ssl.SSLContext:
    """Trusts what Flower's clients trust under ``ca``.

    Python's own default refuses, since 3.13, certificates that lack parts which RFC 5280 asks for; some that
    other tools make do.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=ca)
    return context


def unchecked() -> ssl.SSLContext:
    """For a look at a server whose certificate may be one that nobody trusts."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def handshake(address: Address, context: ssl.SSLContext) -> bytes | None:
    """The certificate that ``address`` shows, in DER. Raises OSError if no TLS connection comes about."""
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection((address.host, address.port), DIAL_SECONDS) as raw,
        context.wrap_socket(raw, server_hostname=address.host) as wrapped,
    ):
        return wrapped.getpeercert(binary_form=True)


def accepts(address: Address, timeout: float) -> bool:
    """Whether anything takes connections at ``address``."""
    try:
        socket.create_connection((address.host, address.port), timeout).close()
    except (OSError, UnicodeError):  # the last for a host that is no name, such as a..b
        return False
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
    except (OSError, ValueError, HTTPException):  # the last for what speaks no HTTP, such as gRPC or SSH
        return False
