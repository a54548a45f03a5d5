"""Certificates and keys read back from their files, and what they say of themselves."""

from base64 import b64encode
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from common.errors import ConfigError

Key = ec.EllipticCurvePrivateKey
ServerKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey  # the server's may be from another CA than ours


def read_certificates(path: Path, what: str = "certificate") -> list[x509.Certificate]:
    """The certificates in a PEM file, the first one first. Raises ConfigError if there is none."""
    try:
        return x509.load_pem_x509_certificates(read_file(path, what))
    except ValueError:
        raise ConfigError(f"{what} {path} holds no certificate in PEM form") from None


def read_signing_key(path: Path, passphrase: bytes = b"") -> Key:
    """A CA's private key, of the kind that 'specfed certs' signs with. Raises ConfigError as ``read_key``."""
    key = read_key(path, passphrase, "CA key")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"CA key {path} is not an elliptic-curve key, such as 'specfed certs init' makes")
    return key


def read_key(path: Path, passphrase: bytes = b"", what: str = "key") -> ServerKey:
    """A private key of a CA or server. Raises ConfigError; ``is_encrypted`` tells if a passphrase is due."""
    content = read_file(path, what)
    if is_encrypted(content) and not passphrase:
        raise ConfigError(f"{what} {path} needs its passphrase; give --passphrase-file")
    try:
        key = serialization.load_pem_private_key(content, passphrase if is_encrypted(content) else None)
    except (ValueError, UnsupportedAlgorithm):
        why = "the passphrase is wrong" if is_encrypted(content) else "it is no private key in PEM form"
        raise ConfigError(f"{what} {path} cannot be read: {why}") from None
    if not isinstance(key, ServerKey):
        raise ConfigError(f"{what} {path} is neither an elliptic-curve nor an RSA key")
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
