"""A CA, a server's key and its certificate."""

import pytest
from cryptography import x509

from specfed.certs import making, reading
from tests.specfed.certs.example import HOSTS, NOW


@pytest.fixture(scope="module")
def authority() -> making.Authority:
    return making.new_authority(now=NOW)


@pytest.fixture(scope="module")
def key() -> reading.Key:
    return making.new_key()


@pytest.fixture(scope="module")
def certificate(authority: making.Authority, key: reading.Key) -> x509.Certificate:
    return making.new_server_certificate(authority, key, HOSTS, 90, NOW)
