"""Files and folders that are there whole or not at all, also on a disk that is full, and whose they are."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import ConfigError


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
    """Remove a half-written file or folder if anything ends this: a full disk, or a signal."""
    try:
        yield
    except BaseException:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)
        raise


@contextmanager
def alone(file: Path, taken: str, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[None]:
    """Hold a file, so that no other process does. The lock goes with the process, however it ends.

    Raises ConfigError, with the sentence ``taken`` if somebody holds it.
    """
    try:
        descriptor = os.open(file, flags, 0o600)
    except OSError as error:
        raise ConfigError(f"{file} cannot be opened: {error.strerror}; is it another user's?") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(taken) from None
        except OSError as error:
            raise ConfigError(f"{file} cannot be locked: {error.strerror}") from None
        yield
    finally:
        os.close(descriptor)
