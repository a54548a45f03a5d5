"""Certificates and keys. The oracles are cryptography's own verifier, ssh's fingerprint form and Flower's loaders."""

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import verification

from common.errors import ConfigError
from specfed import certs

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
HOSTS = ["fl.Example.org", "10.0.0.5", "2001:db8::7", "*.lab.example.org"]

KNOWN_KEY = (
    "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBMpVS6p2NOC8y2LNNs"
    "sHwtopxVlRt5MqU0NtnvlL2hT512j/e8/XnyGDgxZuT0VKrqmU0be5LdNcAHXi2ymEpjyq3aETh0I6hEYqdjNYgPSAUGj4FfO8XgDknI98gbW3zg== site-a\n"
)
KNOWN_FINGERPRINT = "SHA256:IyALza44wGOHL3/Cyg/hBz8yzmw6N6FSNNwnMXtrq/4"


@pytest.fixture(scope="module")
def authority() -> certs.Authority:
    return certs.new_authority(now=NOW)


@pytest.fixture(scope="module")
def key() -> certs.Key:
    return certs.new_key()


@pytest.fixture(scope="module")
def certificate(authority: certs.Authority, key: certs.Key) -> x509.Certificate:
    return certs.new_server_certificate(authority, key, HOSTS, 90, NOW)


@pytest.mark.parametrize(
    "host",
    [
        x509.DNSName("fl.example.org"),
        x509.DNSName("a.lab.example.org"),
        x509.DNSName("localhost"),
        x509.IPAddress(certs.ip_address("10.0.0.5")),
        x509.IPAddress(certs.ip_address("2001:db8::7")),
        x509.IPAddress(certs.ip_address("127.0.0.1")),
        x509.IPAddress(certs.ip_address("::1")),
    ],
)
def test_a_strict_verifier_accepts_the_server(
    authority: certs.Authority, certificate: x509.Certificate, host: x509.DNSName | x509.IPAddress
) -> None:
    store = verification.Store([authority.certificate])
    verifier = verification.PolicyBuilder().store(store).time(NOW).build_server_verifier(host)
    assert verifier.verify(certificate, [])[-1] == authority.certificate
    assert certs.name_problem(certificate, str(host.value), "it") == ""


def test_a_strict_verifier_refuses_other_names_and_another_ca(
    authority: certs.Authority, certificate: x509.Certificate
) -> None:
    for known, host in (
        (authority, "other.example.org"),
        (certs.new_authority(now=NOW), "fl.example.org"),
    ):
        store = verification.Store([known.certificate])
        builder = verification.PolicyBuilder().store(store).time(NOW)
        with pytest.raises(verification.VerificationError):
            builder.build_server_verifier(x509.DNSName(host)).verify(certificate, [])


def test_names_and_dates(authority: certs.Authority, certificate: x509.Certificate) -> None:
    local = ["localhost", "127.0.0.1", "::1"]
    assert certs.hosts_of(certificate) == ["fl.example.org", *HOSTS[1:], *local]
    assert certificate.not_valid_after_utc == NOW + timedelta(days=90)
    assert certificate.not_valid_before_utc < NOW
    assert authority.certificate.not_valid_after_utc == NOW + timedelta(days=certs.CA_DAYS)
    again = certs.new_authority(now=NOW)
    assert again.certificate.subject != authority.certificate.subject


def test_a_certificate_does_not_outlive_its_ca(key: certs.Key) -> None:
    short = certs.new_authority(days=10, now=NOW)
    made = certs.new_server_certificate(short, key, ["a.org"], 365, NOW)
    assert made.not_valid_after_utc == short.certificate.not_valid_after_utc
    with pytest.raises(ConfigError, match=r"the CA's certificate expired on 2026-06-11 12:00 UTC"):
        certs.new_server_certificate(short, key, ["a.org"], 365, NOW + timedelta(days=11))


def test_an_own_name_given_by_hand_stands_once(authority: certs.Authority, key: certs.Key) -> None:
    made = certs.new_server_certificate(authority, key, ["::1", "localhost", "a.org", "a.org"], 1, NOW)
    assert certs.hosts_of(made) == ["::1", "localhost", "a.org", "127.0.0.1"]


@pytest.mark.parametrize(
    "host", ["", "a b", "http://a.org", "a.org:9092", "1.2.3.4.5", "-a.org", "a..b", "a/b"]
)
def test_what_is_no_host(authority: certs.Authority, key: certs.Key, host: str) -> None:
    with pytest.raises(ConfigError, match="is not a host; it takes a DNS name or an IP address"):
        certs.new_server_certificate(authority, key, [host], 1, NOW)


# --- files -------------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_flower_takes_a_nodes_keys(tmp_path: Path) -> None:
    """The very calls of flower-supernode and of its registration."""
    from flwr.supercore.primitives.asymmetric import uses_nist_ec_curve

    certs.write(certs.node_key_files(tmp_path / "site-a", "site-a"))
    private, public = tmp_path / "site-a" / "site-a.key", tmp_path / "site-a" / "site-a.pub"
    loaded = serialization.load_ssh_private_key(private.read_bytes(), None)
    known = serialization.load_ssh_public_key(public.read_bytes())
    assert isinstance(loaded, ec.EllipticCurvePrivateKey) and isinstance(known, ec.EllipticCurvePublicKey)
    assert uses_nist_ec_curve(known) and loaded.curve.name == "secp384r1"
    assert loaded.public_key() == known == certs.read_public_key(public)
    assert certs.read_node_key(private).private_numbers() == loaded.private_numbers()
    assert (mode(private), mode(public), mode(private.parent)) == (0o600, 0o644, 0o700)
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ") and public.read_text().endswith(" site-a\n")


def test_a_fingerprint_is_that_of_ssh_keygen(tmp_path: Path) -> None:
    public = tmp_path / "known.pub"  # its fingerprint below is what ssh-keygen -lf printed for it
    public.write_text(KNOWN_KEY)
    assert certs.fingerprint(certs.read_public_key(public)) == KNOWN_FINGERPRINT


def test_keys_come_back_with_their_passphrase_only(tmp_path: Path) -> None:
    key = certs.new_key()
    for name, secret in (("open", b""), ("closed", b"correct horse")):
        certs.write([certs.NewFile(tmp_path / name, certs.key_pem(key, secret), certs.PRIVATE)])
        back = certs.read_key(tmp_path / name, secret)
        assert back.private_numbers() == key.private_numbers()
    assert certs.read_key(tmp_path / "open", b"needless").private_numbers() == key.private_numbers()
    with pytest.raises(ConfigError, match="closed cannot be read: the passphrase is wrong"):
        certs.read_key(tmp_path / "closed", b"battery staple")
    with pytest.raises(ConfigError, match="closed needs its passphrase; give --passphrase-file"):
        certs.read_key(tmp_path / "closed")


def test_files_are_written_all_or_not_at_all(tmp_path: Path) -> None:
    old, new = certs.NewFile(tmp_path / "a" / "old", b"1"), certs.NewFile(tmp_path / "b" / "new", b"2")
    certs.write([old])
    with pytest.raises(ConfigError, match="old is there already; --force replaces it"):
        certs.write([new, certs.NewFile(old.path, b"3")])
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        certs.write([new, certs.NewFile(tmp_path / "file" / "x", b"4")])
    assert not new.path.exists() and old.path.read_bytes() == b"1"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["file", "old"]
    certs.write([new, certs.NewFile(old.path, b"3")], force=True)
    assert (old.path.read_bytes(), new.path.read_bytes()) == (b"3", b"2")


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (certs.read_certificates, "certificate FILE holds no certificate in PEM form"),
        (certs.read_key, "key FILE cannot be read: it is no private key in PEM form"),
        (certs.read_node_key, "node key FILE is not an OpenSSH elliptic-curve key without a passphrase"),
        (certs.read_public_key, "FILE is not the public key of a node, such as site-a.pub"),
    ],
)
def test_nonsense_and_missing_files_are_named(tmp_path: Path, read: object, sentence: str) -> None:
    file = tmp_path / "nonsense"
    file.write_bytes(b"-----BEGIN NOTHING-----\n\xff")
    with pytest.raises(ConfigError) as error:
        read(file)  # type: ignore[operator]
    assert sentence.replace("FILE", str(file)) in str(error.value)
    with pytest.raises(ConfigError, match="nowhere cannot be read: No such file"):
        read(tmp_path / "nowhere")  # type: ignore[operator]


def test_a_private_key_is_not_taken_for_its_public_half(tmp_path: Path) -> None:
    certs.write(certs.node_key_files(tmp_path, "site-a"))
    with pytest.raises(ConfigError, match="that is the private key, it must stay on its node"):
        certs.read_public_key(tmp_path / "site-a.key")


# --- checks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("days", "problem", "warning"),
    [
        (-1, "it is not valid before 2026-06-01", ""),
        (0, "", ""),
        (59, "", ""),
        (61, "", "it expires in 29 days, on 2026-08-30"),
        (89.9, "", "it expires in 0 days, on 2026-08-30"),
        (91, "it expired on 2026-08-30 12:00 UTC", ""),
    ],
)
def test_expiry(certificate: x509.Certificate, days: float, problem: str, warning: str) -> None:
    moment = NOW + timedelta(days=days)
    assert certs.expiry_problem(certificate, "it", moment).startswith(problem)
    assert bool(certs.expiry_problem(certificate, "it", moment)) == bool(problem)
    assert certs.expiry_warning(certificate, "it", moment) == warning
    assert certs.days_left(certificate, moment) == pytest.approx(90 - days)


@pytest.mark.parametrize(
    "host", ["fl.example.com", "a.b.lab.example.org", "lab.example.org", "10.0.0.6", "::2"]
)
def test_other_hosts_are_told(certificate: x509.Certificate, host: str) -> None:
    problem = certs.name_problem(certificate, host, "it")
    assert problem.startswith("it holds for fl.example.org, 10.0.0.5,") and problem.endswith(
        f"not for {host}"
    )


@pytest.mark.parametrize("host", ["FL.example.org", "[2001:db8::7]", "2001:db8:0::7", "x.lab.example.org"])
def test_ways_to_write_a_host(certificate: x509.Certificate, host: str) -> None:
    assert certs.name_problem(certificate, host, "it") == ""


def test_whose_certificate_it_is(authority: certs.Authority, certificate: x509.Certificate) -> None:
    other = certs.new_authority(now=NOW)
    assert certs.chain_problem([certificate], [other.certificate, authority.certificate], "it") == ""
    assert certs.chain_problem([authority.certificate], [authority.certificate], "it") == ""
    problem = certs.chain_problem([certificate], [other.certificate], "it")
    assert problem == f"it is not from this CA, but from {authority.certificate.subject.rfc4514_string()}"
    # A known certificate further on in the chain does not vouch for what it has not issued.
    assert certs.chain_problem([certificate, other.certificate], [other.certificate], "it") == problem
    assert certs.chain_problem([certificate, authority.certificate], [authority.certificate], "it") == ""


def test_whose_key_it_is(certificate: x509.Certificate, key: certs.Key) -> None:
    assert certs.key_problem(certificate, key, "it") == ""
    assert certs.key_problem(certificate, certs.new_key(), "it") == "it does not belong to the certificate"


def test_who_can_read_a_key(tmp_path: Path) -> None:
    certs.write(certs.node_key_files(tmp_path, "a"))
    file = tmp_path / "a.key"
    assert certs.mode_problem(file) == ""
    file.chmod(0o640)
    assert certs.mode_problem(file) == f"other users can read {file} (mode 640); 'chmod 600 {file}' closes it"
