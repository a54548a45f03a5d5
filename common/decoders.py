"""Sources of examples that are slow to read: scikit-learn's digits, image folders, Parquet files, the hub.

Each function imports its decoder itself, because a process that finds the data in the cache needs none.
"""

import os
import re
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from common.errors import DataError, nearest

Split = Literal["train", "test"]
Picture = tuple[str, IO[bytes] | Path]  # what an error calls it, and its file
Pixels = npt.NDArray[np.uint8]

HUB = "https://huggingface.co"
HUB_SECONDS = 5.0

_SUFFIXES = (".png", ".jpg", ".jpeg")
_IMAGE_COLUMNS = ("img", "image")
_LABEL_COLUMNS = ("label", "labels", "fine_label")
# PIL's modes with 8 bits a channel, and what they become. Others would lose depth.
_GREY, _COLOUR = ("1", "L", "LA"), ("P", "RGB", "RGBA", "CMYK", "YCbCr")
_MODES = dict.fromkeys(_GREY, "L") | dict.fromkeys(_COLOUR, "RGB")


class Raw(NamedTuple):
    """What a source holds, not yet checked."""

    x: npt.NDArray[Any]  # (n, channels, height, width) or (n, features)
    y: npt.NDArray[Any]  # (n,)
    classes: int | None  # None if the source does not say how many
    names: tuple[str, ...] = ()  # of the classes, by number, if the source has them


def digits(split: Split) -> Raw:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels as uint8: 1,437 to train, 360 to test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    everything = np.arange(len(bunch.target))
    train, test = train_test_split(everything, test_size=360, stratify=bunch.target, random_state=0)
    rows = np.sort({"train": train, "test": test}[split])
    grey = np.rint(bunch.images[rows] * (255 / 16)).astype(np.uint8)  # (n, 8, 8)
    return Raw(grey[:, np.newaxis], bunch.target[rows], classes=10)


def is_picture(path: Path) -> bool:
    """Whether a file's name is that of an image; hidden files are none."""
    return path.suffix.lower() in _SUFFIXES and not path.name.startswith(".")


def images(folder: Path, files: Sequence[Path], split: Split) -> Raw:
    """Pictures in ``folder/SPLIT/CLASS/``, or ``folder/CLASS/`` if all of them are to train on.

    ``files`` are the folder's image files; the classes are the sorted folders of the training split.
    """
    divided = (folder / "train").is_dir()
    root = folder / split if divided else folder
    if not root.is_dir() or (split == "test" and not divided):
        raise DataError(f"image folder {folder} has no folder {split}/; takes {split}/CLASS/*.png")
    training = folder / "train" if divided else folder
    classes = sorted(
        path.name for path in training.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    mine = [path for path in files if path.parent.parent == root]
    unknown = sorted({path.parent.name for path in mine} - set(classes))
    if unknown:
        hint = nearest(unknown[0], classes)
        raise DataError(f'{root} has a class "{unknown[0]}" that {training} lacks. {hint}'.rstrip())
    labels = [classes.index(path.parent.name) for path in mine]
    pixels = _stack(str(root), ((str(path), path) for path in mine))
    return Raw(pixels, np.array(labels), len(classes), tuple(classes))


def parquet(folder: Path, files: Sequence[Path], split: Split) -> Raw:
    """The pictures and labels of those ``files`` that are named ``SPLIT-*.parquet``."""
    mine = [str(path) for path in files if re.match(rf"{split}\b", path.name)]
    if not mine:
        raise DataError(f"folder {folder} has no files {split}-*.parquet")
    with tempfile.TemporaryDirectory() as scratch, _no_progress_bars():
        import datasets

        try:
            table = datasets.Dataset.from_parquet(mine, cache_dir=scratch)
        except Exception as error:  # the library and Arrow raise many kinds
            raise DataError(f"cannot read {split}-*.parquet in {folder}: {_cause(error)}") from error
        return _from_table(f"{folder}, {split}", table)


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
    return _from_table(f"{name}, {split}", table)


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


def _from_table(where: str, table: Any) -> Raw:
    """Pictures and labels of a ``datasets.Dataset``."""
    import datasets

    image = _column(where, table.features, datasets.Image, _IMAGE_COLUMNS)
    label = _column(where, table.features, datasets.ClassLabel, _LABEL_COLUMNS)
    kind = table.features[label]
    names = tuple(kind.names) if isinstance(kind, datasets.ClassLabel) else ()
    try:
        encoded = table.select_columns([image]).cast_column(image, datasets.Image(decode=False))
    except Exception as error:  # of Arrow's own kinds
        raise DataError(f'{where}: column "{image}" holds no pictures: {_cause(error)}') from error
    cells = enumerate(row[image] for row in encoded)
    pictures = ((f"{where}, row {n}", _file(f"{where}, row {n}", cell)) for n, cell in cells)
    return Raw(_stack(where, pictures), np.asarray(table[label][:]), len(names) or None, names)


def _file(where: str, cell: dict[str, Any] | None) -> IO[bytes] | Path:
    if cell is None or (cell["path"] is None and cell["bytes"] is None):
        raise DataError(f"{where} has no picture")
    return Path(cell["path"]) if cell["bytes"] is None else BytesIO(cell["bytes"])


def _column(where: str, features: Mapping[str, object], kind: type, names: Sequence[str]) -> str:
    """The first column of the type, else the first with one of the names."""
    typed = [name for name, feature in features.items() if isinstance(feature, kind)]
    found = [*typed, *(name for name in names if name in features)]
    if not found:
        raise DataError(
            f"{where} has no column of type {kind.__name__} nor one named {' or '.join(names)}; "
            f"it has {', '.join(features)}"
        )
    return found[0]


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


def _stack(where: str, pictures: Iterable[Picture]) -> Pixels:
    """Pictures of one size as (n, 1, height, width) if all are grey, else (n, 3, height, width)."""
    decoded: list[Pixels] = []
    first = ""
    for name, source in pictures:
        pixels = _pixels(name, source)
        first = first or name
        if decoded and pixels.shape[1:] != decoded[0].shape[1:]:
            raise DataError(
                f"all images must have one size: {first} has {_size(decoded[0])} pixels, "
                f"{name} has {_size(pixels)}"
            )
        decoded.append(pixels)
    if not decoded:
        raise DataError(f"{where} holds no images")
    channels = max(len(pixels) for pixels in decoded)
    shape = (channels, *decoded[0].shape[1:])
    return np.stack([np.broadcast_to(pixels, shape) for pixels in decoded])


def _size(pixels: Pixels) -> str:
    _, height, width = pixels.shape
    return f"{width}x{height}"


def _pixels(name: str, source: IO[bytes] | Path) -> Pixels:
    """One picture as (channels, height, width)."""
    from PIL import Image

    try:
        with Image.open(source) as picture:
            if picture.mode not in _MODES:
                raise DataError(f"image {name} has pixels of kind {picture.mode}; takes 8 bits a channel")
            pixels = np.asarray(picture.convert(_MODES[picture.mode]))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"image {name} cannot be read: {_first_line(error)}") from error
    return np.atleast_3d(pixels).transpose(2, 0, 1)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


def _cause(error: BaseException) -> str:
    """The error at the bottom, because the library wraps what matters."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {_first_line(error)}".rstrip(".")
