"""New certificates. The oracle is cryptography's own verifier."""

from datetime import timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.x509 import verification

from common.errors import ConfigError
from specfed.certs import checking, making, reading
from tests.specfed.certs.example import HOSTS, NOW


@pytest.mark.parametrize(
    "host",
    [
        x509.DNSName("fl.example.org"),
        x509.DNSName("a.lab.example.org"),
        x509.DNSName("localhost"),
        x509.IPAddress(ip_address("10.0.0.5")),
        x509.IPAddress(ip_address("2001:db8::7")),
        x509.IPAddress(ip_address("127.0.0.1")),
        x509.IPAddress(ip_address("::1")),
    ],
)
def test_a_strict_verifier_accepts_the_server(
    authority: making.Authority, certificate: x509.Certificate, host: x509.DNSName | x509.IPAddress
) -> None:
    store = verification.Store([authority.certificate])
    verifier = verification.PolicyBuilder().store(store).time(NOW).build_server_verifier(host)
    assert verifier.verify(certificate, [])[-1] == authority.certificate
    assert checking.name_problem(certificate, str(host.value), "it") == ""


def test_a_strict_verifier_refuses_other_names_and_another_ca(
    authority: making.Authority, certificate: x509.Certificate
) -> None:
    for known, host in (
        (authority, "other.example.org"),
        (making.new_authority(now=NOW), "fl.example.org"),
    ):
        store = verification.Store([known.certificate])
        builder = verification.PolicyBuilder().store(store).time(NOW)
        with pytest.raises(verification.VerificationError):
            builder.build_server_verifier(x509.DNSName(host)).verify(certificate, [])


def test_names_and_dates(authority: making.Authority, certificate: x509.Certificate) -> None:
    local = ["localhost", "127.0.0.1", "::1"]
    assert reading.hosts_of(certificate) == ["fl.example.org", *HOSTS[1:], *local]
    assert certificate.not_valid_after_utc == NOW + timedelta(days=90)
    assert certificate.not_valid_before_utc < NOW
    assert authority.certificate.not_valid_after_utc == NOW + timedelta(days=making.CA_DAYS)
    again = making.new_authority(now=NOW)
    assert again.certificate.subject != authority.certificate.subject


def test_a_certificate_does_not_outlive_its_ca(key: reading.Key) -> None:
    short = making.new_authority(days=10, now=NOW)
    made = making.new_server_certificate(short, key, ["a.org"], 365, NOW)
    assert made.not_valid_after_utc == short.certificate.not_valid_after_utc
    with pytest.raises(ConfigError, match=r"the CA's certificate expired on 2026-06-11 12:00 UTC"):
        making.new_server_certificate(short, key, ["a.org"], 365, NOW + timedelta(days=11))


def test_an_own_name_given_by_hand_stands_once(authority: making.Authority, key: reading.Key) -> None:
    made = making.new_server_certificate(authority, key, ["::1", "localhost", "a.org", "a.org"], 1, NOW)
    assert reading.hosts_of(made) == ["::1", "localhost", "a.org", "127.0.0.1"]


@pytest.mark.parametrize(
    "host", ["", "a b", "http://a.org", "a.org:9092", "1.2.3.4.5", "-a.org", "a..b", "a/b"]
)
def test_what_is_no_host(authority: making.Authority, key: reading.Key, host: str) -> None:
    with pytest.raises(ConfigError, match="is not a host; it takes a DNS name or an IP address"):
        making.new_server_certificate(authority, key, [host], 1, NOW)
