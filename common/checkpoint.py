"""Checkpoints: a whole round in one folder that is there completely or not at all.

``checkpoints/round-0007/`` holds ``model.safetensors`` (parameters), where there are any also
``buffers.safetensors``, ``optimizer.safetensors`` (the server optimiser's arrays), ``personal.safetensors``
(models that belong to single nodes), ``shared.safetensors`` (what the algorithm keeps on the server) and
``trail.safetensors`` (of earlier models, for the guards), and ``state.json``, which lists them. It is written
under another name, flushed to the disk and renamed. No pickle.
"""

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import DataError
from common.files import gone_on_failure, write_through, write_whole
from common.params import Arrays
from common.text import to_json

FORMAT = 6
PARTS = ("model", "buffers", "optimizer", "personal", "shared", "trail")


@dataclass(frozen=True)
class Checkpoint:
    """A model after a round, and what the next round needs."""

    round: int
    model: Arrays
    buffers: Arrays
    state: dict[str, Any]  # JSON
    optimizer: Arrays = field(default_factory=dict)
    personal: Arrays = field(default_factory=dict)  # "<node>/<parameter>"
    shared: Arrays = field(default_factory=dict)  # "<slot>/<parameter>"
    trail: Arrays = field(default_factory=dict)  # "trail": (rounds, elements)


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint into ``folder`` and remove all but the last ``keep``."""
    final = folder / f"round-{checkpoint.round:04d}"
    partial = folder / f".{final.name}.{os.getpid()}"
    for abandoned in folder.glob(".round-*"):  # by a process that was killed
        shutil.rmtree(abandoned, ignore_errors=True)
    partial.mkdir(parents=True)
    parts = {part: getattr(checkpoint, part) for part in PARTS}
    parts = {part: arrays for part, arrays in parts.items() if arrays}
    meta = {"format": FORMAT, "round": checkpoint.round, "parts": [*parts], "state": checkpoint.state}
    with gone_on_failure(partial):
        for part, arrays in parts.items():
            save_arrays(partial / f"{part}.safetensors", arrays)
        write_through(partial / "state.json", to_json(meta).encode())
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
    for old in finished(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def load_latest(folder: Path) -> Checkpoint:
    """The checkpoint of the highest round. Raises DataError if there is none, or it cannot be read."""
    whole = finished(folder)
    if not whole:
        raise DataError(f"no checkpoint in {folder}")
    latest = whole[-1]
    try:
        meta = json.loads((latest / "state.json").read_text(encoding="utf-8"))
        if meta["format"] != FORMAT:
            raise DataError(f"{latest} has checkpoint format {meta['format']}; this version reads {FORMAT}")
        parts = {
            part: load_arrays(latest / f"{part}.safetensors") if part in meta["parts"] else {}
            for part in PARTS
        }
        return Checkpoint(int(meta["round"]), state=meta["state"], **parts)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"the checkpoint {latest} cannot be read: {error}") from None


def finished(folder: Path) -> list[Path]:
    """The checkpoints in a folder, each of them whole, in the order of their rounds."""
    rounds = {path: path.name.removeprefix("round-") for path in folder.glob("round-*")}
    return sorted((p for p, number in rounds.items() if number.isdecimal()), key=lambda p: int(rounds[p]))


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Write named arrays as safetensors, whole or not at all."""
    from safetensors.numpy import save as to_bytes

    # Not np.ascontiguousarray, which gives an array without axes one.
    write_whole(path, to_bytes({name: np.asarray(x, order="C") for name, x in arrays.items()}))


def load_arrays(path: Path) -> Arrays:
    """Read named arrays from safetensors. Raises DataError if the file is missing or broken."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError, TypeError, AttributeError) as error:  # the last two: no numpy type
        raise DataError(f"no tensors in {path}: {error}") from None
