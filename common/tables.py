"""Tables of examples: folders of Parquet or CSV files, and data sets of the Hugging Face hub.

Their inputs are pictures, texts or plain numbers. What decodes them is imported when it is needed, because a
process that finds the data in the cache needs none.
"""

import os
import re
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from common import words
from common.decoders import Pixels, Raw, Split, stacked
from common.errors import DataError, nearest
from common.text import first_line

HUB = "https://huggingface.co"
HUB_SECONDS = 5.0

_IMAGE_COLUMNS = ("img", "image")
_TEXT_COLUMNS = ("text", "sentence", "content")
_LABEL_COLUMNS = ("label", "labels", "fine_label")
_UNNAMED = "Unnamed: "  # what pandas calls a column without a name


def found_in(folder: Path, suffix: str) -> list[Path]:
    """The folder's ``.parquet`` or ``.csv`` files, sorted; of the latter, those that are named as a split."""
    files = sorted([*folder.glob(f"*{suffix}"), *folder.glob(f"data/*{suffix}")])
    return files if suffix == ".parquet" else [file for file in files if _names(file, "train|test")]


def read(folder: Path, files: Sequence[Path], split: Split) -> Raw:
    """The rows of those ``files``, all of one kind, whose names begin with the split's."""
    kind = files[0].suffix
    mine = [str(file) for file in files if _names(file, split)]
    if not mine:
        raise DataError(f"folder {folder} has no files {split}-*{kind}")
    with tempfile.TemporaryDirectory() as scratch, _no_progress_bars():
        try:
            table = _from_csv(mine) if kind == ".csv" else _from_parquet(mine, scratch)
        except Exception as error:  # the library, Arrow and pandas raise many kinds
            raise DataError(f"cannot read {split}-*{kind} in {folder}: {_cause(error)}") from error
        return _content(f"{folder}, {split}", table)


def _from_parquet(files: Sequence[str], scratch: str) -> Any:
    import datasets

    return datasets.Dataset.from_parquet(files, cache_dir=scratch)


def _from_csv(files: Sequence[str]) -> Any:
    """With pandas, which sees a whole column before it decides on a type; the library leaves files open."""
    import datasets
    import pandas as pd

    frames = [pd.read_csv(file, low_memory=False) for file in files]
    return datasets.Dataset.from_pandas(pd.concat(frames, ignore_index=True), preserve_index=False)


def hub(name: str, split: Split) -> Raw:
    """A data set of the Hugging Face hub, or of its library's cache when the hub is out of reach."""
    if not _hub_answers():
        # Read when the library is imported. It would ask for half a minute before it looks into its cache.
        os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets

    try:
        table = datasets.load_dataset(name, split=split)
    except Exception as error:  # the library raises many kinds, from the network's to its own
        hint = nearest(name, ["digits"])
        raise DataError(
            f'data "{name}" ({split}) is neither a file or folder nor to be had from the Hugging Face hub: '
            f"{_cause(error)}. {hint}".rstrip()
        ) from error
    return _content(f"{name}, {split}", table)


def _hub_answers() -> bool:
    """Whether it says anything within a few seconds. It may be elsewhere, behind a proxy, or switched off."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:  # as the library reads it
        return False
    hub = urllib.request.Request(os.environ.get("HF_ENDPOINT", HUB), method="HEAD")
    try:
        with urllib.request.urlopen(hub, timeout=HUB_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        # The library may know more certificates than Python does.
        return isinstance(error.reason, ssl.SSLError)
    except (OSError, ValueError, HTTPException):  # the last for what speaks no HTTP
        return False


def _content(where: str, table: Any) -> Raw:
    """Inputs and labels of a ``datasets.Dataset``: the first of pictures, texts and numbers that it has."""
    import datasets

    label = _column(table.features, datasets.ClassLabel, _LABEL_COLUMNS)
    if label is None:
        raise DataError(
            f"{where} has no column of type ClassLabel nor one named {' or '.join(_LABEL_COLUMNS)}; "
            f"it has {', '.join(table.features)}"
        )
    kind = table.features[label]
    names = tuple(kind.names) if isinstance(kind, datasets.ClassLabel) else ()
    y, classes = np.asarray(_whole(where, table, label, "label")), len(names) or None
    if image := _column(table.features, datasets.Image, _IMAGE_COLUMNS):
        return Raw(_pictures(where, table, image), y, classes, names)
    if text := next((name for name in _TEXT_COLUMNS if _is_text(table.features.get(name))), None):
        return Raw(_texts(where, table, text), y, classes, names)
    columns = tuple(name for name in table.features if name != label)
    return Raw(_numbers(where, table, columns), y, classes, names, columns)


def _column(features: Mapping[str, object], kind: type, names: Sequence[str]) -> str | None:
    """The first column of the type, else the first with one of the names."""
    typed = [name for name, feature in features.items() if isinstance(feature, kind)]
    return next(iter([*typed, *(name for name in names if name in features)]), None)


def _whole(where: str, table: Any, column: str, what: str) -> list[Any]:
    values: list[Any] = table[column][:]
    if None in values:
        raise DataError(f"{where}, row {values.index(None)} has no {what}")
    return values


def _pictures(where: str, table: Any, column: str) -> Pixels:
    import datasets

    try:
        encoded = table.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    except Exception as error:  # of Arrow's own kinds
        raise DataError(f'{where}: column "{column}" holds no pictures: {_cause(error)}') from error
    cells = ((f"{where}, row {n}", row[column]) for n, row in enumerate(encoded))
    return stacked(where, ((name, _file(name, cell)) for name, cell in cells))


def _file(where: str, cell: dict[str, Any] | None) -> IO[bytes] | Path:
    if cell is None or (cell["path"] is None and cell["bytes"] is None):
        raise DataError(f"{where} has no picture")
    return Path(cell["path"]) if cell["bytes"] is None else BytesIO(cell["bytes"])


def _texts(where: str, table: Any, column: str) -> npt.NDArray[np.float32]:
    return words.numbered(_whole(where, table, column, "text"))


def _numbers(where: str, table: Any, columns: Sequence[str]) -> npt.NDArray[np.float64]:
    """The columns side by side, in the table's order."""
    if not columns:
        raise DataError(f"{where} has no column beside the label")
    for name in columns:
        if name.startswith(_UNNAMED):
            raise DataError(f"{where} has a column without a name. If it counts the rows, leave it out")
        if not _is_numeric(table.features[name]):
            raise DataError(
                f'{where}: column "{name}" holds no numbers, as each column beside the label must; '
                f"texts stand in one named {' or '.join(_TEXT_COLUMNS)}, pictures in one named "
                f"{' or '.join(_IMAGE_COLUMNS)}"
            )
    frame = table.select_columns(list(columns)).to_pandas()
    values: npt.NDArray[np.float64] = frame.to_numpy(np.float64, na_value=np.nan)
    if np.isnan(values).any():
        row, column = np.argwhere(np.isnan(values))[0]
        raise DataError(f'{where}, row {row}: column "{columns[column]}" holds no number')
    return values


def _is_numeric(feature: object) -> bool:
    return _kind(feature) in ("bool", "int", "uint", "float")


def _is_text(feature: object) -> bool:
    return _kind(feature) in ("string", "large_string")


def _kind(feature: object) -> str:
    """The name of a column's type, without its width."""
    return str(getattr(feature, "dtype", "")).rstrip("0123456789")


def _names(file: Path, split: str) -> bool:
    return re.match(rf"({split})\b", file.name) is not None


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    import datasets

    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def _cause(error: BaseException) -> str:
    """The error at the bottom, because the library wraps what matters."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {first_line(error)}".rstrip(".")
