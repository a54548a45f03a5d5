"""Files of certificates and keys, written together."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import ConfigError

PUBLIC, PRIVATE = 0o644, 0o600


@dataclass(frozen=True)
class NewFile:
    """A file that is to be written."""

    path: Path
    content: bytes
    mode: int = PUBLIC


def write(files: Sequence[NewFile], force: bool = False) -> None:
    """Write files, each whole, and none before all of them are on the disk under other names. New folders
    that hold a private key are closed to other users.

    Raises ConfigError if one is there already, unless ``force``, and if one cannot be written.
    """
    there = [file.path for file in files if os.path.lexists(file.path)]
    if there and not force:
        raise ConfigError(f"{there[0]} is there already; --force replaces it")
    partial: list[tuple[str, Path]] = []
    try:
        for file in files:
            private = any(f.mode == PRIVATE for f in files if f.path.parent == file.path.parent)
            file.path.parent.mkdir(0o700 if private else 0o755, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=f".{file.path.name}.", dir=file.path.parent)
            partial.append((name, file.path))
            with os.fdopen(descriptor, "wb") as out:
                os.fchmod(out.fileno(), file.mode)
                out.write(file.content)
                out.flush()
                os.fsync(out.fileno())
        for name, path in partial:
            os.replace(name, path)
    except OSError as error:
        raise ConfigError(f"{error.filename or file.path} cannot be written: {error.strerror}") from None
    finally:
        for name, _ in partial:
            Path(name).unlink(missing_ok=True)
