"""The federation that the tests of the ServerApp run."""

from pathlib import Path

import pytest

from tests.federation import Federation


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    """A federation whose files lie in the test's own folder."""
    return Federation(tmp_path, monkeypatch)
