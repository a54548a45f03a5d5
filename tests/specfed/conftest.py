"""What the tests of servers, nodes and their commands start from."""

from pathlib import Path

import pytest

from specfed.commands import certificates


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder with certificates of ``specfed certs init`` and a bundle for site-a."""
    certificates.init(["fl.example.org", "127.0.0.1"], tmp_path / "certs")
    certificates.issue(["site-a"], tmp_path / "certs")
    return tmp_path / "certs"
