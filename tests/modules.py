"""Models by name, and Python modules of a user's own."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common import words
from common.models import MODELS

# Shapes of inputs that the built-in models take.
TEXT = (words.LENGTH,)
SMALL = {name: {"dan": TEXT, "vit-b16": (1, 16, 16)}.get(name, (1, 8, 8)) for name in MODELS}


@contextmanager
def importable(folder: Path, patch: pytest.MonkeyPatch, **sources: str) -> Iterator[None]:
    """Modules in ``folder``, by name, which are forgotten afterwards."""
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    patch.syspath_prepend(folder)
    yield
    for name in sources:
        sys.modules.pop(name, None)
