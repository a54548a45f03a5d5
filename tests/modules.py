"""Python modules of a user's own."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def importable(folder: Path, patch: pytest.MonkeyPatch, **sources: str) -> Iterator[None]:
    """Modules in ``folder``, by name, which are forgotten afterwards."""
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    patch.syspath_prepend(folder)
    yield
    for name in sources:
        sys.modules.pop(name, None)
