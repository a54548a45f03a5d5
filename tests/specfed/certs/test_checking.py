"""What is wrong with certificates and keys, in words."""

from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from specfed.certs import checking, making, reading, writing
from tests.specfed.certs.example import NOW


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
    assert checking.expiry_problem(certificate, "it", moment).startswith(problem)
    assert bool(checking.expiry_problem(certificate, "it", moment)) == bool(problem)
    assert checking.expiry_warning(certificate, "it", moment) == warning
    assert checking.days_left(certificate, moment) == pytest.approx(90 - days)


@pytest.mark.parametrize(
    "host", ["fl.example.com", "a.b.lab.example.org", "lab.example.org", "10.0.0.6", "::2"]
)
def test_other_hosts_are_told(certificate: x509.Certificate, host: str) -> None:
    problem = checking.name_problem(certificate, host, "it")
    assert problem.startswith("it holds for fl.example.org, 10.0.0.5,") and problem.endswith(
        f"not for {host}"
    )


@pytest.mark.parametrize("host", ["FL.example.org", "[2001:db8::7]", "2001:db8:0::7", "x.lab.example.org"])
def test_ways_to_write_a_host(certificate: x509.Certificate, host: str) -> None:
    assert checking.name_problem(certificate, host, "it") == ""


def test_whose_certificate_it_is(authority: making.Authority, certificate: x509.Certificate) -> None:
    other = making.new_authority(now=NOW)
    assert checking.chain_problem([certificate], [other.certificate, authority.certificate], "it") == ""
    assert checking.chain_problem([authority.certificate], [authority.certificate], "it") == ""
    problem = checking.chain_problem([certificate], [other.certificate], "it")
    assert problem == f"it is not from this CA, but from {authority.certificate.subject.rfc4514_string()}"
    # A known certificate further on in the chain does not vouch for what it has not issued.
    assert checking.chain_problem([certificate, other.certificate], [other.certificate], "it") == problem
    assert checking.chain_problem([certificate, authority.certificate], [authority.certificate], "it") == ""


def test_whose_key_it_is(certificate: x509.Certificate, key: reading.Key) -> None:
    assert checking.key_problem(certificate, key, "it") == ""
    assert (
        checking.key_problem(certificate, making.new_key(), "it") == "it does not belong to the certificate"
    )


def test_who_can_read_a_key(tmp_path: Path) -> None:
    writing.write(making.node_key_files(tmp_path, "a"))
    file = tmp_path / "a.key"
    assert checking.mode_problem(file) == ""
    file.chmod(0o640)
    assert (
        checking.mode_problem(file) == f"other users can read {file} (mode 640); 'chmod 600 {file}' closes it"
    )
