"""The federation that the contract tests run."""

from pathlib import Path

import pytest

from tests.federation import Federation


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    """A federation whose files lie in the test's own folder."""
    return Federation(tmp_path, monkeypatch)
