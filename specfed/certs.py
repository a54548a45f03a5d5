"""Certificates and keys of a federation: made, written, read back and checked.

Three kinds of keys stay apart. The CA's signs the server's certificate and is needed for nothing else: keep
it off the server. The server's proves to nodes whom they talk to. A node's proves to the server which site it
is; it is not signed, but enrolled at the server. What ``*_problem`` returns is a sentence, empty if all is
well, so that a command can raise it and a check-up can list it.
"""

import os
import re
import secrets
import tempfile
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from common.errors import ConfigError

CA_DAYS = 3650  # nodes hold the CA's certificate; it must outlive many server certificates
SERVER_DAYS = 365
WARN_DAYS = 30
SLACK = timedelta(minutes=10)  # for a node whose clock is a little late
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")  # the server's own processes dial it by these

PUBLIC, PRIVATE = 0o644, 0o600

_DNS_LABEL = r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)"
_DNS_NAME = re.compile(rf"(\*\.)?{_DNS_LABEL}(\.{_DNS_LABEL})*")

Key = ec.EllipticCurvePrivateKey
Address = IPv4Address | IPv6Address


@dataclass(frozen=True)
class Authority:
    """A CA: its certificate, and the key that signs in its name."""

    certificate: x509.Certificate
    key: Key


@dataclass(frozen=True)
class NewFile:
    """A file that is to be written."""

    path: Path
    content: bytes
    mode: int = PUBLIC


# --- making ------------------------------------------------------------------------------------------


def new_authority(days: int = CA_DAYS, now: datetime | None = None) -> Authority:
    """A CA with a name of its own, so that one federation's is not taken for another's."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name(f"specfed CA {secrets.token_hex(4)}")
    builder = _builder(name, name, key.public_key(), key.public_key(), days, now)
    usage = _usage(digital_signature=False, key_cert_sign=True, crl_sign=True)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return Authority(builder.add_extension(usage, critical=True).sign(key, hashes.SHA384()), key)


def new_server_certificate(
    authority: Authority,
    key: Key,
    hosts: Sequence[str],
    days: int = SERVER_DAYS,
    now: datetime | None = None,
) -> x509.Certificate:
    """A certificate for the server's ``key`` that holds for ``hosts`` and for this machine's own names.

    It does not outlive the CA. Raises ConfigError for a host that is no name or IP address, and for a CA
    that has expired.
    """
    known = list(dict.fromkeys([*(_host(host) for host in hosts), *map(_host, LOCAL_NAMES)]))
    problem = expiry_problem(authority.certificate, "the CA's certificate", now)
    if problem:
        raise ConfigError(problem)
    subject, issuer = _name("specfed server"), authority.certificate.subject
    builder = _builder(
        subject,
        issuer,
        key.public_key(),
        authority.key.public_key(),
        days,
        now,
        authority.certificate.not_valid_after_utc,
    )
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    return (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(purposes, critical=False)
        .add_extension(x509.SubjectAlternativeName(known), critical=False)
        .sign(authority.key, hashes.SHA384())
    )


def new_key() -> Key:
    """A private key on NIST's P-384."""
    return ec.generate_private_key(ec.SECP384R1())


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """A certificate as its file holds it."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: Key, passphrase: bytes = b"") -> bytes:
    """A private key as its file holds it, encrypted if there is a passphrase."""
    how: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        how = serialization.BestAvailableEncryption(passphrase)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


def node_key_files(folder: Path, name: str) -> tuple[NewFile, NewFile]:
    """A new key pair of the node ``name`` in the form that Flower reads: OpenSSH, without a passphrase."""
    key = new_key()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    return NewFile(folder / f"{name}.key", private, PRIVATE), public_key_file(folder, name, key.public_key())


def public_key_file(folder: Path, name: str, key: ec.EllipticCurvePublicKey) -> NewFile:
    """A node's public key: the file that its server enrols."""
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return NewFile(folder / f"{name}.pub", line + f" {name}\n".encode())


def write(files: Sequence[NewFile], force: bool = False) -> None:
    """Write all of the files or none; folders that hold a private key are closed to other users.

    Raises ConfigError if one is there already, unless ``force``, and if one cannot be written.
    """
    there = [file.path for file in files if file.path.exists()]
    if there and not force:
        raise ConfigError(f"{there[0]} is there already; --force replaces it")
    partial: list[tuple[str, Path]] = []
    try:
        for file in files:
            private = any(f.mode == PRIVATE for f in files if f.path.parent == file.path.parent)
            file.path.parent.mkdir(0o700 if private else 0o755, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=f".{file.path.name}.", dir=file.path.parent)
            partial.append((name, file.path))
            with os.fdopen(descriptor, "wb") as out:
                os.fchmod(out.fileno(), file.mode)
                out.write(file.content)
                out.flush()
                os.fsync(out.fileno())
        for name, path in partial:
            os.replace(name, path)
    except OSError as error:
        raise ConfigError(f"{error.filename or 'a file'} cannot be written: {error.strerror}") from None
    finally:
        for name, _ in partial:
            Path(name).unlink(missing_ok=True)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    days: int,
    now: datetime | None,
    no_later: datetime | None = None,
) -> x509.CertificateBuilder:
    start = now or datetime.now(UTC)
    end = start + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - SLACK)
        .not_valid_after(end if no_later is None else min(end, no_later))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _usage(digital_signature: bool, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    host = text.strip("[]")
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        if _DNS_NAME.fullmatch(host) and not re.fullmatch(r"[\d.]+", host) and len(host) < 254:
            return x509.DNSName(host.lower())
    raise ConfigError(f'"{text}" is not a host; it takes a DNS name or an IP address, without a port')


# --- reading -----------------------------------------------------------------------------------------


def read_certificates(path: Path, what: str = "certificate") -> list[x509.Certificate]:
    """The certificates in a PEM file, the first one first. Raises ConfigError if there is none."""
    try:
        return x509.load_pem_x509_certificates(read_file(path, what))
    except ValueError:
        raise ConfigError(f"{what} {path} holds no certificate in PEM form") from None


def read_key(path: Path, passphrase: bytes = b"", what: str = "key") -> Key:
    """A private key of a CA or server. Raises ConfigError; ``is_encrypted`` tells if a passphrase is due."""
    content = read_file(path, what)
    if is_encrypted(content) and not passphrase:
        raise ConfigError(f"{what} {path} needs its passphrase; give --passphrase-file")
    try:
        key = serialization.load_pem_private_key(content, passphrase if is_encrypted(content) else None)
    except (ValueError, UnsupportedAlgorithm):
        why = "the passphrase is wrong" if is_encrypted(content) else "it is no private key in PEM form"
        raise ConfigError(f"{what} {path} cannot be read: {why}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{what} {path} is not an elliptic-curve key")
    return key


def is_encrypted(content: bytes) -> bool:
    """Whether a private key in PEM form asks for a passphrase."""
    return b"ENCRYPTED" in content


def read_node_key(path: Path) -> Key:
    """A node's private key. Raises ConfigError if Flower would not take it."""
    try:
        key = serialization.load_ssh_private_key(read_file(path, "node key"), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key
    raise ConfigError(
        f"node key {path} is not an OpenSSH elliptic-curve key without a passphrase, "
        "such as 'specfed certs key' makes"
    )


def read_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """A node's public key. Raises ConfigError if Flower would not take it."""
    try:
        key = serialization.load_ssh_public_key(read_file(path, "public key"))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if isinstance(key, ec.EllipticCurvePublicKey):
        return key
    hint = "; that is the private key, it must stay on its node" if _is_private(path) else ""
    raise ConfigError(f"{path} is not the public key of a node, such as site-a.pub{hint}")


def _is_private(path: Path) -> bool:
    return b"PRIVATE KEY" in path.read_bytes()


def read_file(path: Path, what: str) -> bytes:
    """A file's content. Raises ConfigError that says what it should have been."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error.strerror}") from None


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The DNS names and IP addresses that a certificate holds for, in its order."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """A public key's fingerprint as ssh-keygen shows it: ``SHA256:...``; two people can compare it."""
    digest = serialization.ssh_key_fingerprint(key, hashes.SHA256())
    return "SHA256:" + b64encode(digest).decode().rstrip("=")


# --- checking ----------------------------------------------------------------------------------------


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


def key_problem(certificate: x509.Certificate, key: Key, what: str) -> str:
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
