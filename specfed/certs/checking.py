"""What is wrong with certificates and keys.

What ``*_problem`` and ``expiry_warning`` return is a sentence, empty if all is well, so that a command can
raise it and a check-up can list it.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from specfed.certs.reading import ServerKey, hosts_of

WARN_DAYS = 30


def days_left(certificate: x509.Certificate, now: datetime | None = None) -> float:
    """Days until a certificate expires; negative once it has."""
    return (certificate.not_valid_after_utc - (now or datetime.now(UTC))) / timedelta(days=1)


def is_early(certificate: x509.Certificate, now: datetime | None = None) -> bool:
    """Whether a certificate is not valid yet; then it may be the clock that is wrong."""
    return (now or datetime.now(UTC)) < certificate.not_valid_before_utc


def expiry_problem(certificate: x509.Certificate, what: str, now: datetime | None = None) -> str:
    """What is wrong with the dates of ``what``, a certificate."""
    if days_left(certificate, now) < 0:
        return f"{what} expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if is_early(certificate, now):
        start = f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        return f"{what} is not valid before {start}; is this machine's clock right?"
    return ""


def expiry_warning(certificate: x509.Certificate, what: str, now: datetime | None = None) -> str:
    """That ``what``, a certificate, expires within thirty days, if so."""
    left = days_left(certificate, now)
    if not 0 <= left < WARN_DAYS:
        return ""
    return f"{what} expires in {left:.0f} days, on {certificate.not_valid_after_utc:%Y-%m-%d}"


def name_problem(certificate: x509.Certificate, host: str, what: str) -> str:
    """That ``what``, a certificate, does not hold for the host that is dialled, if so."""
    hosts = hosts_of(certificate)
    if any(_holds_for(name, host.strip("[]").lower()) for name in hosts):
        return ""
    return f"{what} holds for {', '.join(hosts) or 'no host'}, but not for {host}"


def chain_problem(
    chain: Sequence[x509.Certificate], authorities: Iterable[x509.Certificate], what: str
) -> str:
    """That no CA vouches for ``what``: its certificate and those between it and the CA, in that order."""
    known = list(authorities)
    for certificate, above in zip(chain, [*chain[1:], None], strict=True):
        if certificate in known or any(_issued(certificate, authority) for authority in known):
            return ""
        if above is None or not _issued(certificate, above):
            break
    return f"{what} is not from this CA, but from {chain[0].issuer.rfc4514_string()}"


def key_problem(certificate: x509.Certificate, key: ServerKey, what: str) -> str:
    """That ``what``, a private key, does not belong to the certificate, if so."""
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    same = certificate.public_key().public_bytes(*form) == key.public_key().public_bytes(*form)
    return "" if same else f"{what} does not belong to the certificate"


def mode_problem(path: Path) -> str:
    """That other users of this machine can read a private key, if so."""
    mode = path.stat().st_mode & 0o777
    return (
        f"other users can read {path} (mode {mode:o}); 'chmod 600 {path}' closes it" if mode & 0o077 else ""
    )


def _holds_for(name: str, host: str) -> bool:
    if name.startswith("*."):
        return host.partition(".")[2] == name[2:]
    try:
        return ip_address(name) == ip_address(host)
    except ValueError:
        return name == host


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
