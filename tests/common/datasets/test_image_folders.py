"""Folders of pictures: CLASS/*.png, with or without halves."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from common.datasets import load
from tests.common.datasets.sources import picture, refusal


def image_folder(root: Path) -> Path:
    """Three classes; the test half lacks one of them."""
    for name, value in {
        "train/cat/1.png": 10,
        "train/cat/2.PNG": 20,
        "train/ant/x.jpg": 30,
        "train/bee/1.jpeg": 40,
        "test/cat/1.png": 50,
        "test/ant/1.png": 60,
        "train/cat/._1.png": None,
        "train/cat/notes.txt": None,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if value is None:
            (root / name).write_text("not an image")
        else:
            picture(value).save(root / name)
    return root


def test_image_folders(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "pictures")
    train, test = load(str(folder), "train"), load(str(folder), "test")
    assert (train.input_shape, train.classes, train.x.dtype) == ((1, 4, 5), 3, np.uint8)
    # Sorted by class, then by name: ant, bee, cat, cat.
    assert train.y.tolist() == [0, 1, 2, 2]
    assert train.x[:, 0, 0, 0].tolist() == [30, 40, 10, 20]
    assert (test.y.tolist(), test.x[:, 0, 0, 0].tolist(), test.classes) == ([0, 2], [60, 50], 3)


def test_an_image_folder_without_halves_is_all_for_training(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "pictures") / "train"
    assert load(str(folder), "train").y.tolist() == [0, 1, 2, 2]
    assert refusal(folder, "test") == f"image folder {folder} has no folder test/; takes test/CLASS/*.png"


def test_an_empty_class_folder_still_counts_as_a_class(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "pictures")
    assert load(str(folder), "train").classes == 3  # and is in the cache
    (folder / "train" / "bat").mkdir()
    assert load(str(folder), "train").classes == 4
    (folder / "train" / "bat" / "1.png").write_bytes((folder / "train" / "cat" / "1.png").read_bytes())
    assert load(str(folder), "train").y.tolist() == [0, 1, 2, 3, 3]


def test_a_changed_image_folder_is_read_anew(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "pictures")
    assert load(str(folder), "train").x[0, 0, 0, 0] == 30
    picture(99).save(folder / "train" / "ant" / "a.png")
    assert load(str(folder), "train").x[:2, 0, 0, 0].tolist() == [99, 30]


def test_a_relative_folder_is_the_same_folder(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_folder(tmp_path / "pictures")
    load(str(folder), "train")
    monkeypatch.chdir(tmp_path)
    assert len(load("pictures", "train")) == 4
    assert len(list(cache.iterdir())) == 1


def test_colour_grey_and_palette_pictures(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    (folder / "a").mkdir(parents=True)
    picture((1, 2, 3), "RGB").save(folder / "a" / "1.png")
    picture(7, "L").save(folder / "a" / "2.png")
    picture((4, 5, 6, 0), "RGBA").save(folder / "a" / "3.png")
    picture((8, 9, 10), "RGB").quantize(4).save(folder / "a" / "4.png")
    picture(1, "1").save(folder / "a" / "5.png")
    train = load(str(folder), "train")
    assert train.input_shape == (3, 4, 5)
    expected = [[1, 2, 3], [7, 7, 7], [4, 5, 6], [8, 9, 10], [255, 255, 255]]
    assert train.x[:, :, 1, 1].tolist() == expected


def test_height_comes_before_width(tmp_path: Path) -> None:
    (tmp_path / "p" / "a").mkdir(parents=True)
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    Image.fromarray(pixels).save(tmp_path / "p" / "a" / "1.png")
    assert np.array_equal(load(str(tmp_path / "p"), "train").x[0], np.moveaxis(pixels, 2, 0))


def test_image_folders_that_cannot_be_used(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "pictures")
    cat = folder / "train" / "cat"

    picture(1, size=(6, 4)).save(cat / "3.png")
    first = folder / "train" / "ant" / "x.jpg"
    assert (
        refusal(folder) == f"all images must have one size: {first} has 5x4 pixels, {cat / '3.png'} has 6x4"
    )

    (cat / "3.png").write_bytes((cat / "1.png").read_bytes()[:40])
    assert refusal(folder).startswith(f"image {cat / '3.png'} cannot be read: ")

    picture(1000, "I;16").save(cat / "3.png")
    assert refusal(folder) == f"image {cat / '3.png'} has pixels of kind I;16; takes 8 bits a channel"

    (folder / "test" / "dog").mkdir()
    picture(1).save(folder / "test" / "dog" / "1.png")
    assert refusal(folder, "test") == f'{folder / "test"} has a class "dog" that {folder / "train"} lacks.'

    shutil.rmtree(folder / "test")
    assert refusal(folder, "test") == f"image folder {folder} has no folder test/; takes test/CLASS/*.png"

    (folder / "test" / "cat").mkdir(parents=True)
    assert refusal(folder, "test") == f"{folder / 'test'} holds no images"

    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "empty") == (
        f"folder {tmp_path / 'empty'} holds neither *.parquet files nor CLASS/*.png or *.jpg images "
        "nor train*.csv"
    )


def test_a_half_that_cannot_be_decoded_leaves_nothing_in_the_cache(tmp_path: Path, cache: Path) -> None:
    folder = image_folder(tmp_path / "pictures")
    (folder / "train" / "cat" / "3.png").write_text("no image")
    refusal(folder)
    assert not cache.exists()


def test_the_naming_tells_other_classes_and_another_order_apart(tmp_path: Path) -> None:
    for site, classes in {"a": "cat dog", "b": "cat dog", "c": "dog fox", "d": "catd og"}.items():
        for name in classes.split():
            (tmp_path / site / name).mkdir(parents=True)
            picture(10).save(tmp_path / site / name / "1.png")
    a, b, c, d = (load(str(tmp_path / site), "train") for site in "abcd")
    assert a.names == ("cat", "dog") and len(a.naming) == 16
    assert a.naming == b.naming == load(str(tmp_path / "a"), "train").naming  # from the cache
    assert len({a.naming, c.naming, d.naming}) == 3
    assert a.rows(np.array([1])).names == a.names


def test_a_link_to_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "train" / "cat" / "a.png").symlink_to(tmp_path / "gone.png")
    assert refusal(str(tmp_path), "train").endswith("a.png cannot be read: No such file or directory")
