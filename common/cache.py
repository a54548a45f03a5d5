"""Arrays that are slow to make, kept as ``.npy`` files and mapped into memory when they are needed again.

Entries lie in ``$SPECFED_CACHE`` (``~/.cache/specfed`` if unset), readable by their owner only, and may be
deleted at any time.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import DataError

Array = npt.NDArray[Any]

_FORMAT = 3
_SCRATCH = ".new-"  # before the name of a folder that is being written
_ABANDONED = 86_400  # seconds after which nobody writes there any more
_DAMAGED = (OSError, ValueError, KeyError, TypeError, EOFError)  # what reading such an entry raises

_log = logging.getLogger(__name__)


def fetch(
    name: Sequence[object], files: Sequence[Path], make: Callable[[], Mapping[str, Array]]
) -> dict[str, Array]:
    """The arrays that ``make`` gives, made only if ``name`` and ``files`` have not been seen before.

    ``name`` is any JSON value; a file counts as another one when its path, size or time changes. Arrays
    from the cache are read-only. Several processes may ask at once: an entry appears whole or not at
    all. It takes the place of what was made under the same name before. If it cannot be written, the
    arrays are returned all the same, with a logged warning.
    """
    folder = root()
    entry = folder / _key(name, files)
    found = _read(entry)
    if found is not None:
        return found
    arrays = dict(make())
    try:
        _write(entry, arrays, name)
    except OSError as error:
        _log.warning("%s is decoded anew each time: cannot write to the cache %s: %s", name, folder, error)
        return arrays
    _remove_former(entry, name)
    return _read(entry) or arrays


def root() -> Path:
    """The folder that the entries lie in."""
    return Path(os.path.expanduser(os.environ.get("SPECFED_CACHE") or "~/.cache/specfed"))


def _key(name: Sequence[object], files: Sequence[Path]) -> str:
    try:
        stats = [(str(path), stat.st_size, stat.st_mtime_ns) for path in files for stat in [path.stat()]]
    except OSError as error:  # such as a link to nowhere
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from None
    text = json.dumps([_FORMAT, name, stats])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(entry: Path) -> dict[str, Array] | None:
    if not os.path.isdir(entry):  # False also where the folder is closed to us
        return None
    try:
        meta = json.loads((entry / "meta.json").read_text(encoding="utf-8"))
        return {
            array: np.asarray(np.load(entry / f"{array}.npy", mmap_mode="r", allow_pickle=False))
            for array in meta["arrays"]
        }
    except _DAMAGED as error:
        _log.warning("cache entry %s is damaged and is made anew: %s", entry, error)
        shutil.rmtree(entry, ignore_errors=True)
        return None


def _remove_former(entry: Path, name: Sequence[object]) -> None:
    """What was made of other files under this name: data that somebody has taken away must not stay here.

    Also what a process left that died while it wrote. Whoever has mapped an entry keeps what is in it.
    """
    for meta in entry.parent.glob("*/meta.json"):
        if meta.parent != entry and _name_in(meta) == list(name):
            shutil.rmtree(meta.parent, ignore_errors=True)
    for scratch in entry.parent.glob(f"{_SCRATCH}*"):
        if time.time() - _changed(scratch) > _ABANDONED:
            shutil.rmtree(scratch, ignore_errors=True)


def _name_in(meta: Path) -> object:
    try:
        return json.loads(meta.read_text(encoding="utf-8"))["name"]
    except _DAMAGED:  # or removed meanwhile: made anew when asked for
        return None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # finished meanwhile
        return time.time()


def _write(entry: Path, arrays: Mapping[str, Array], name: Sequence[object]) -> None:
    entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=entry.parent))
    try:
        for array, values in arrays.items():
            np.save(scratch / f"{array}.npy", values, allow_pickle=False)
        meta = {"format": _FORMAT, "name": name, "arrays": list(arrays)}
        (scratch / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
        scratch.rename(entry)
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        if not entry.is_dir():  # else another process was faster, with the same arrays
            raise
