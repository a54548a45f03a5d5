"""New certificates and keys, and the form that their files have."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from common.errors import ConfigError
from specfed.certs.checking import expiry_problem
from specfed.certs.reading import Key, ServerKey
from specfed.certs.writing import PRIVATE, NewFile

CA_DAYS = 3650  # nodes hold the CA's certificate; it must outlive many server certificates
SERVER_DAYS = 365
SLACK = timedelta(minutes=10)  # for a node whose clock is a little late
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")  # the server's own processes dial it by these
LONGEST_PASSPHRASE = 1023  # bytes that OpenSSL takes
_DNS_LABEL = r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)"
_DNS_NAME = re.compile(rf"(\*\.)?{_DNS_LABEL}(\.{_DNS_LABEL})*")


@dataclass(frozen=True)
class Authority:
    """A CA: its certificate, and the key that signs in its name."""

    certificate: x509.Certificate
    key: Key


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
    key: ServerKey,
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
    """A private key as its file holds it, encrypted if there is a passphrase, which OpenSSL must take."""
    if len(passphrase) > LONGEST_PASSPHRASE:
        raise ConfigError(f"a passphrase takes at most {LONGEST_PASSPHRASE:,} bytes; got {len(passphrase):,}")
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


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
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
