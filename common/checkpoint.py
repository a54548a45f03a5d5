"""Checkpoints: a whole round in one folder that is there completely or not at all.

``checkpoints/round-0007/`` holds ``model.safetensors`` (parameters), ``buffers.safetensors``,
``optimizer.safetensors`` (the server optimiser's arrays, often none), ``personal.safetensors`` (models that
belong to single nodes, mostly none), ``shared.safetensors`` (what the algorithm keeps on the server, mostly
nothing) and ``state.json``. It is written under another name, flushed to the disk and renamed. No pickle.
"""

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import DataError
from common.ledger import to_json
from common.params import Arrays

FORMAT = 2


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


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint into ``folder`` and remove all but the last ``keep``."""
    final = folder / f"round-{checkpoint.round:04d}"
    partial = folder / f".{final.name}.{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_arrays(partial / "model.safetensors", checkpoint.model)
    save_arrays(partial / "buffers.safetensors", checkpoint.buffers)
    save_arrays(partial / "optimizer.safetensors", checkpoint.optimizer)
    save_arrays(partial / "personal.safetensors", checkpoint.personal)
    save_arrays(partial / "shared.safetensors", checkpoint.shared)
    meta = {"format": FORMAT, "round": checkpoint.round, "state": checkpoint.state}
    _write(partial / "state.json", to_json(meta).encode())
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    for old in _finished(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def load_latest(folder: Path) -> Checkpoint:
    """The checkpoint of the highest round. Raises DataError if there is none, or it cannot be read."""
    finished = _finished(folder)
    if not finished:
        raise DataError(f"no checkpoint in {folder}")
    latest = finished[-1]
    try:
        meta = json.loads((latest / "state.json").read_text(encoding="utf-8"))
        if meta["format"] != FORMAT:
            raise DataError(f"{latest} has checkpoint format {meta['format']}; this version reads {FORMAT}")
        model, buffers, optimizer, personal, shared = (
            load_arrays(latest / f"{part}.safetensors")
            for part in ("model", "buffers", "optimizer", "personal", "shared")
        )
        return Checkpoint(int(meta["round"]), model, buffers, meta["state"], optimizer, personal, shared)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"the checkpoint {latest} cannot be read: {error}") from None


def save_arrays(path: Path, arrays: Arrays) -> None:
    """Write named arrays as safetensors, whole or not at all."""
    from safetensors.numpy import save as to_bytes

    partial = path.with_name(f".{path.name}.{os.getpid()}")
    # Not np.ascontiguousarray, which gives an array without axes one.
    _write(partial, to_bytes({name: np.asarray(x, order="C") for name, x in arrays.items()}))
    partial.replace(path)


def load_arrays(path: Path) -> Arrays:
    """Read named arrays from safetensors. Raises DataError if the file is missing or broken."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError, TypeError, AttributeError) as error:  # the last two: no numpy type
        raise DataError(f"no tensors in {path}: {error}") from None


def _finished(folder: Path) -> list[Path]:
    rounds = {path: path.name.removeprefix("round-") for path in folder.glob("round-*")}
    return sorted((p for p, number in rounds.items() if number.isdecimal()), key=lambda p: int(rounds[p]))


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
