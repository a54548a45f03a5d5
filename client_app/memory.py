"""What a node remembers from one of its rounds to the next: control variates, duals, drifts.

A node cannot know whether its reply arrives. So it keeps two values: the one that its last accepted reply
left, and the one that its latest reply will have left if it is accepted. Each is stored under the round it
comes from, and the server's next message names the round of the node's last accepted reply; what does not
belong to that round is gone. ``era`` counts how often the server had everybody start anew.

On the disk a value is one safetensors file, whole or not there, with its own hash in its name; a file that
does not match its hash counts as lost.
"""

import hashlib
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from common.checkpoint import load_arrays, save_arrays
from common.errors import DataError
from common.messages import Context, pack, unpack
from common.params import Arrays, flat, nested

DAYS = 30  # that the memory of a run nobody goes on with stays on the disk

NamedSlots = Mapping[str, Arrays]


@dataclass(frozen=True)
class Moment:
    """When a value was made: the round within the era. Round 0 is before the first."""

    era: int
    round: int


class Store(Protocol):
    """Where values are kept. Values of other moments than the last two are not."""

    def load(self, moment: Moment) -> NamedSlots | None:
        """The value of this moment, or None if there is none that can be trusted."""

    def save(self, moment: Moment, slots: NamedSlots, keep: Moment) -> None:
        """Keep a value, and of the others that of ``keep`` alone. Raises DataError if it cannot be kept."""


@dataclass(frozen=True)
class DiskStore:
    """Files in a folder of the node's, which outlive its processes."""

    folder: Path

    @classmethod
    def of(cls, root: Path, run: str, node: str) -> "DiskStore":
        """The folder of one run and node. Other runs' folders that are older than ``DAYS`` are removed."""
        # The names come from outside; a hash of them is a safe name for a folder.
        own = root / hashlib.sha256(f"{run}/{node}".encode()).hexdigest()[:24]
        _remove_old(root, own)
        return cls(own)

    def load(self, moment: Moment) -> NamedSlots | None:
        """The value of this moment, unless its file is missing or damaged."""
        for path in self.folder.glob(f"{_stem(moment)}-*.safetensors"):
            if path.stem.rpartition("-")[2] == _hash(path):
                return nested(load_arrays(path))
        return None

    def save(self, moment: Moment, slots: NamedSlots, keep: Moment) -> None:
        """Write the new file before the old ones go."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial = self.folder / "new"
            save_arrays(partial, flat(slots))
            final = self.folder / f"{_stem(moment)}-{_hash(partial)}.safetensors"
            partial.replace(final)
            for path in self.folder.glob("*.safetensors"):
                if path != final and not path.name.startswith(f"{_stem(keep)}-"):
                    path.unlink()
        except OSError as error:
            raise DataError(f"this node's memory cannot be written in {self.folder}: {error}") from None


@dataclass(frozen=True)
class ContextStore:
    """Flower's own memory of a node, which ends with the SuperNode's process."""

    context: Context

    def load(self, moment: Moment) -> NamedSlots | None:
        """The value of this moment."""
        record = self.context.state.array_records.get(_stem(moment))
        return None if record is None else nested(unpack(record))

    def save(self, moment: Moment, slots: NamedSlots, keep: Moment) -> None:
        """Put the value beside that of ``keep``."""
        records = self.context.state.array_records
        for name in set(records) - {_stem(keep)}:
            del records[name]
        records[_stem(moment)] = pack(flat(slots))


def recall(store: Store, accepted: Moment) -> tuple[NamedSlots, bool]:
    """What a node remembers after the reply that was accepted last, and whether that was lost.

    Nothing is lost if nothing was accepted in this era yet.
    """
    if accepted.round == 0:
        return {}, False
    found = store.load(accepted)
    return ({}, True) if found is None else (found, False)


def _stem(moment: Moment) -> str:
    return f"memory-{moment.era}-{moment.round}"


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _remove_old(root: Path, own: Path) -> None:
    limit = time.time() - DAYS * 86_400
    for folder in root.glob("[0-9a-f]" * 24):
        with suppress(FileNotFoundError):  # another process removes them, too
            if folder != own and folder.stat().st_mtime < limit:
                shutil.rmtree(folder, ignore_errors=True)
