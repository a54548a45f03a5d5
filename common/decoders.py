"""Sources of examples that are slow to read: scikit-learn's digits, image folders.

Each function imports its decoder itself, because a process that finds the data in the cache needs none.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from common.errors import DataError, nearest
from common.text import first_line

Split = Literal["train", "test"]
Picture = tuple[str, IO[bytes] | Path]  # what an error calls it, and its file
Pixels = npt.NDArray[np.uint8]

_SUFFIXES = (".png", ".jpg", ".jpeg")
# PIL's modes with 8 bits a channel, and what they become. Others would lose depth.
_GREY, _COLOUR = ("1", "L", "LA"), ("P", "RGB", "RGBA", "CMYK", "YCbCr")
_MODES = dict.fromkeys(_GREY, "L") | dict.fromkeys(_COLOUR, "RGB")


class Raw(NamedTuple):
    """What a source holds, not yet checked."""

    x: npt.NDArray[Any]  # (n, channels, height, width) or (n, features)
    y: npt.NDArray[Any]  # (n,)
    classes: int | None  # None if the source does not say how many
    names: tuple[str, ...] = ()  # of the classes, by number, if the source has them
    columns: tuple[str, ...] = ()  # of the features, in their order, if the source has them


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
    pixels = stacked(str(root), ((str(path), path) for path in mine))
    return Raw(pixels, np.array(labels), len(classes), tuple(classes))


def stacked(where: str, pictures: Iterable[Picture]) -> Pixels:
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
        raise DataError(f"image {name} cannot be read: {first_line(error)}") from error
    return np.atleast_3d(pixels).transpose(2, 0, 1)
