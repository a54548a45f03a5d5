"""Files and folders that are there whole or not at all, also on a disk that is full."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there whole, or as it was before."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with gone_on_failure(partial):
        write_through(partial, content)
        partial.replace(path)


def write_through(path: Path, content: bytes) -> None:
    """Write a file as far as the disk itself."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def gone_on_failure(partial: Path) -> Iterator[None]:
    """Remove a half-written file or folder if an OSError ends this."""
    try:
        yield
    except OSError:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)
        raise
