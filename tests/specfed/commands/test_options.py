"""The way to a server, from a command's options."""

from pathlib import Path

import pytest

from specfed import dial
from specfed.commands.options import reach


def test_a_ca_may_be_named_from_where_one_stands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Flower refuses a relative path in its configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dial, "require_control", lambda address, ca: None)
    monkeypatch.setattr("specfed.certs.reading.read_certificates", lambda ca, what: [])
    address, ca = reach(None, "localhost:8000", None, Path("ca.crt"))
    assert (str(address), ca) == ("localhost:8000", tmp_path / "ca.crt")
