"""Labelled examples by name, as plain arrays.

Flower starts a process for each message, so a node's data must be there at once: what costs seconds to
decode is decoded once and then mapped from the cache. This module imports neither torch nor a decoder.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from common import cache, decoders, memo, tables
from common.decoders import Raw, Split
from common.errors import DataError
from common.plugins import call, is_plugin
from common.seeding import stream

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]

_BLOCK = 1024  # rows that are in memory at once when all are read
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_NPZ_NAMES = {"train": ("x", "y"), "test": ("x_test", "y_test")}


@dataclass(frozen=True)
class Picked:
    """Some rows of an array, which stay where they are, on a disk perhaps, until they are taken."""

    source: Array
    index: Rows

    @property
    def shape(self) -> tuple[int, ...]:
        """As an array's."""
        return (len(self.index), *self.source.shape[1:])

    @property
    def dtype(self) -> npt.DTypeLike:
        """As an array's."""
        return self.source.dtype

    def of(self, rows: Rows) -> Self:
        """These rows of the picked ones, still where they are."""
        return replace(self, index=self.index[rows])

    def take(self, rows: Rows, axis: Literal[0] = 0) -> Array:
        """A copy of these rows of the picked ones, as an array has it."""
        return self.source.take(self.index[rows], axis=axis)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        return self.source.take(self.index, axis=0).astype(dtype or self.source.dtype, copy=False)


@dataclass(frozen=True)
class Examples:
    """Inputs and their classes, row by row."""

    x: Array | Picked  # (n, channels, height, width) or (n, features); uint8 or float32
    y: Rows  # (n,), 0 .. classes - 1
    classes: int
    names: tuple[str, ...] = ()  # of the classes, by number; none if the source has no names
    columns: tuple[str, ...] = ()  # of the features, by number, in a table of numbers

    def __len__(self) -> int:
        return len(self.y)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x.shape[1:])

    def rows(self, index: Rows) -> Self:
        """The rows ``index``, in that order, repeats included. No input is copied before it is taken."""
        own = Picked(self.x, index) if isinstance(self.x, np.ndarray) else self.x.of(index)
        return replace(self, x=own, y=self.y[index])

    @property
    def naming(self) -> str:
        """16 hex digits, a hash of the classes' and the columns' names in their order; empty without names.

        Two sites whose namings differ mean different things by the same number.
        """
        text = json.dumps([self.names, self.columns] if self.columns else self.names)
        return hashlib.sha256(text.encode()).hexdigest()[:16] if self.names or self.columns else ""


def load(spec: str, split: Split) -> Examples:
    """The training or the test examples of the data set ``spec``. Do not write into the arrays.

    ``spec`` is one of

    - ``digits``: scikit-learn's 8x8 digits
    - ``module:function``: called with the split's name, returns ``(x, y)`` or ``Examples``
    - an ``.npz`` file with arrays ``x``, ``y`` and, as it likes, ``x_test``, ``y_test``, ``classes``
    - a folder of Parquet files, ``train-*.parquet`` and ``test-*.parquet``, as Hugging Face lays them out
    - a folder of images, ``train/CLASS/*.png`` and ``test/CLASS/*.png``, or ``CLASS/*.png`` to train only
    - a folder of CSV files with a line of names, ``train*.csv`` and ``test*.csv``
    - a data set of the Hugging Face hub, ``owner/name``

    A table has a column of labels and one of pictures, or one of texts, or else numbers alone. Float inputs
    become float32, and so do texts (``words.numbered``); pictures with their channels last get them first.
    There are as many classes as the source names, or else one more than the largest training label. A
    changed folder is decoded anew; a hub data set stays as it was first met. Raises DataError for what cannot
    be used.
    """
    if is_plugin(spec):
        return _examples(spec, split, _from_function(spec, split))
    if spec == "digits":
        return _cached(spec, split, [], lambda: decoders.digits(split))
    path = Path(spec).expanduser()
    if path.suffix == ".npz":
        return _from_npz(spec, path, split)
    if path.is_dir():
        return _from_folder(path.resolve(), split)
    if path.exists():
        raise DataError(f'data "{spec}" is a file of a kind that cannot be read; takes .npz or a folder')
    if not _HUB_NAME.fullmatch(spec):
        raise DataError(f'data "{spec}": there is no such file or folder')
    return _cached(spec, split, [], lambda: tables.hub(spec, split))


def fingerprint(examples: Examples) -> str:
    """16 hex digits that tell data apart: a hash over type, shape and values, whatever the memory layout."""
    digest = hashlib.sha256()
    for array in (examples.x, examples.y):
        digest.update(f"{np.dtype(array.dtype).str}{array.shape}".encode())
        for start in range(0, len(examples), _BLOCK):
            rows = np.arange(start, min(start + _BLOCK, len(examples)))
            digest.update(np.ascontiguousarray(array.take(rows, axis=0)).data)
    return digest.hexdigest()[:16]


def split_validation(rows: Rows, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Row numbers to train on, and those kept aside to validate on: a share of the distinct rows.

    A row that ``rows`` repeats stands on one side only: the training side keeps order and repeats, the
    validation side is sorted and distinct. At least one row is left to train on.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction is a share of the rows, 0 <= fraction < 1; got {fraction}")
    if fraction == 0:
        return rows, np.empty(0, dtype=np.int64)
    distinct = np.unique(rows)
    kept = max(0, min(round(fraction * len(distinct)), len(distinct) - 1))
    validation = np.sort(stream(seed, "validation").permutation(distinct)[:kept])
    return rows[~np.isin(rows, validation)], validation


def _cached(spec: str, split: Split, files: Sequence[Path], decode: Callable[[], Raw]) -> Examples:
    def make() -> dict[str, Array]:
        examples = _examples(spec, split, decode())
        return {
            "x": np.asarray(examples.x),
            "y": examples.y,
            "classes": np.array(examples.classes),
            "names": np.array(examples.names, dtype=str),
            "columns": np.array(examples.columns, dtype=str),
        }

    arrays = cache.fetch((spec, split), files, make)
    names, columns = (tuple(arrays[key].tolist()) for key in ("names", "columns"))
    return Examples(arrays["x"], arrays["y"], int(arrays["classes"]), names, columns)


def _from_folder(folder: Path, split: Split) -> Examples:
    def table(files: Sequence[Path]) -> Examples:
        return _cached(str(folder), split, files, lambda: tables.read(folder, files, split))

    if parquet := tables.found_in(folder, ".parquet"):
        return table(parquet)
    inside = [*folder.glob("*/*"), *folder.glob("*/*/*")]
    if pictures := sorted(path for path in inside if decoders.is_picture(path)):
        # An empty folder is a class as well.
        folders = sorted(path for path in [*folder.glob("*"), *folder.glob("*/*")] if path.is_dir())
        files = [*folders, *pictures]
        return _cached(str(folder), split, files, lambda: decoders.images(folder, pictures, split))
    if texts := tables.found_in(folder, ".csv"):
        return table(texts)
    raise DataError(
        f"folder {folder} holds neither *.parquet files nor CLASS/*.png or *.jpg images nor train*.csv"
    )


def _from_function(spec: str, split: Split) -> Raw:
    value = call(spec, (split,), DataError)
    if isinstance(value, Examples):
        return Raw(np.asarray(value.x), value.y, value.classes, tuple(value.names), tuple(value.columns))
    if not (isinstance(value, tuple | list) and len(value) == 2):
        raise DataError(
            f'"{spec}" must return (x, y) or common.datasets.Examples; it returned {type(value).__name__}'
        )
    try:
        return Raw(np.asarray(value[0]), np.asarray(value[1]), None)
    except ValueError as error:
        raise DataError(f'"{spec}" must return rows of one shape: {error}') from None


def _from_npz(spec: str, path: Path, split: Split) -> Examples:
    if not path.is_file():
        raise DataError(f'data "{path}": there is no such file')

    def make() -> Examples:
        examples = _examples(spec, split, _read_npz(path, split))
        for array in (np.asarray(examples.x), examples.y):
            array.flags.writeable = False
        return examples

    stat = path.stat()
    key = ("npz", path.absolute(), stat.st_mtime_ns, stat.st_size, split)
    return memo.once(key, make, lambda examples: np.asarray(examples.x).nbytes + examples.y.nbytes)


def _read_npz(path: Path, split: Split) -> Raw:
    x, y = _NPZ_NAMES[split]
    try:
        # Never pickles: an object array in the file raises ValueError.
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in (x, y, "classes") if name in file}
            known = ", ".join(file)
    except Exception as error:  # a damaged archive makes zipfile, its codecs and numpy raise what they like
        raise DataError(f"{path} is not a readable .npz file of numbers ({type(error).__name__})") from error
    for name in (x, y):
        if name not in arrays:
            raise DataError(f'{path} has no array "{name}" for the {split} split; it has {known or "none"}')
    return Raw(arrays[x], arrays[y], _named_classes(path, arrays.get("classes")))


def _named_classes(path: Path, value: Array | None) -> int | None:
    if value is None:
        return None
    if value.shape != () or value.dtype.kind not in "iu":
        raise DataError(f'{path}: "classes" must be one integer; it is {value.dtype} of shape {value.shape}')
    return int(value)


def _examples(spec: str, split: Split, raw: Raw) -> Examples:
    """What a source holds, checked."""
    where = f"{spec}, {split}"
    x, y = _inputs(where, raw.x), _labels(where, raw.y)
    if len(x) != len(y):
        raise DataError(f"{where}: x and y must have equally many rows; they have {len(x)} and {len(y)}")
    classes = _count_classes(spec, split, y) if raw.classes is None else raw.classes
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise DataError(f"{where}: labels must lie in 0..{classes - 1}; found {low if low < 0 else high}")
    return Examples(x, y, classes, raw.names, raw.columns)


def _count_classes(spec: str, split: Split, y: Rows) -> int:
    return int(y.max()) + 1 if split == "train" else load(spec, "train").classes


def _inputs(where: str, x: Array) -> Array:
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise DataError(f"{where}: x must hold uint8 or floating-point numbers; it has type {x.dtype}")
    if x.ndim not in (2, 4):
        shapes = "(n, features) or (n, channels, height, width)"
        raise DataError(f"{where}: x must have the shape {shapes}; it has {x.shape}")
    if x.size == 0:
        raise DataError(f"{where}: there are no examples; x has the shape {x.shape}")
    channels_last = x.ndim == 4 and x.shape[3] <= 4 < x.shape[1]
    x = np.ascontiguousarray(x.transpose(0, 3, 1, 2) if channels_last else x)
    return x if x.dtype == np.uint8 else _finite_floats(where, x)


def _finite_floats(where: str, x: Array) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what overflows becomes infinite and is refused
        x = x.astype(np.float32, copy=False)
    finite = np.isfinite(x).reshape(len(x), -1).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        raise DataError(f"{where}: x must be finite as float32; row {row} has a NaN or infinite number")
    return x


def _labels(where: str, y: Array) -> Rows:
    if y.dtype.kind not in "iu":
        raise DataError(f"{where}: labels must be integers; they have type {y.dtype}")
    if y.ndim != 1 or len(y) == 0:
        raise DataError(f"{where}: y must have the shape (n,) with n > 0; it has {y.shape}")
    return y.astype(np.int64, copy=False)
