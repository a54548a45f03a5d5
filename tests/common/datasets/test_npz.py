""".npz files, and the checks that all sources share."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from common import memo
from common.datasets import load
from tests.common.datasets.sources import refusal


def npz(path: Path, **arrays: object) -> Path:
    np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})
    return path


def test_npz_files(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float64).reshape(3, 4)
    path = npz(tmp_path / "d.npz", x=x, y=np.array([0, 2, 1], np.uint8), x_test=x[:1], y_test=[1])
    train, test = load(str(path), "train"), load(str(path), "test")
    assert (train.x.dtype, train.y.dtype, train.classes, train.input_shape) == (np.float32, np.int64, 3, (4,))
    assert np.array_equal(train.x, x)
    assert train.y.tolist() == [0, 2, 1]
    assert (test.y.tolist(), test.classes) == ([1], 3)


def test_an_npz_file_may_name_its_number_of_classes(tmp_path: Path) -> None:
    path = npz(tmp_path / "d.npz", x_test=np.zeros((2, 3)), y_test=[0, 1], classes=10)
    assert load(str(path), "test").classes == 10


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((2, 8, 6, 3), (3, 8, 6)),
        ((2, 8, 6, 1), (1, 8, 6)),
        ((2, 3, 8, 6), (3, 8, 6)),
        ((2, 3, 8, 3), (3, 8, 3)),
    ],
)
def test_channels_come_first(tmp_path: Path, given: tuple[int, ...], expected: tuple[int, ...]) -> None:
    x = np.arange(np.prod(given), dtype=np.uint8).reshape(given)
    train = load(str(npz(tmp_path / "d.npz", x=x, y=[0, 1])), "train")
    assert train.input_shape == expected
    turned = x if given[1:] == expected else np.moveaxis(x, 3, 1)
    assert np.array_equal(train.x, turned)
    assert train.x.flags.c_contiguous


def test_big_endian_numbers_become_native(tmp_path: Path) -> None:
    train = load(str(npz(tmp_path / "d.npz", x=np.array([[1.5]], ">f4"), y=np.array([0], ">i4"))), "train")
    assert (train.x.dtype, train.y.dtype, train.x.item()) == (np.dtype("<f4"), np.dtype("<i8"), 1.5)


FINE = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": FINE, "y": [0, 1, 1]}, "x and y must have equally many rows; they have 2 and 3"),
        ({"x": np.zeros((0, 3)), "y": []}, "there are no examples; x has the shape (0, 3)"),
        ({"x": np.zeros((2, 0)), "y": [0, 1]}, "there are no examples; x has the shape (2, 0)"),
        ({"x": FINE, "y": np.zeros(0, int)}, "y must have the shape (n,) with n > 0; it has (0,)"),
        (
            {"x": np.zeros((2, 3, 4)), "y": [0, 1]},
            "x must have the shape (n, features) or (n, channels, height, width); it has (2, 3, 4)",
        ),
        (
            {"x": FINE.astype(int), "y": [0, 1]},
            "x must hold uint8 or floating-point numbers; it has type int64",
        ),
        (
            {"x": FINE.astype("U1"), "y": [0, 1]},
            "x must hold uint8 or floating-point numbers; it has type <U1",
        ),
        ({"x": FINE, "y": [0.0, 1.0]}, "labels must be integers; they have type float64"),
        ({"x": FINE, "y": ["a", "b"]}, "labels must be integers; they have type <U1"),
        ({"x": FINE, "y": [[0], [1]]}, "y must have the shape (n,) with n > 0; it has (2, 1)"),
        ({"x": FINE, "y": [0, -1]}, "labels must lie in 0..0; found -1"),
        ({"x": FINE, "y": [0, 5], "classes": 5}, "labels must lie in 0..4; found 5"),
        (
            {"x": [[1.0], [np.nan]], "y": [0, 1]},
            "x must be finite as float32; row 1 has a NaN or infinite number",
        ),
        (
            {"x": [[np.inf], [0]], "y": [0, 1]},
            "x must be finite as float32; row 0 has a NaN or infinite number",
        ),
        (
            {"x": [[1e39], [0]], "y": [0, 1]},
            "x must be finite as float32; row 0 has a NaN or infinite number",
        ),
    ],
)
def test_arrays_that_cannot_be_used(tmp_path: Path, arrays: dict[str, object], reason: str) -> None:
    path = npz(tmp_path / "d.npz", **arrays)
    assert refusal(path) == f"{path}, train: {reason}"


def test_npz_files_that_cannot_be_used(tmp_path: Path) -> None:
    path = npz(tmp_path / "d.npz", x=FINE, z=FINE)
    assert refusal(path) == f'{path} has no array "y" for the train split; it has x, z'
    assert refusal(path, "test") == f'{path} has no array "x_test" for the test split; it has x, z'

    path = npz(tmp_path / "d.npz", x=FINE, y=[0, 1], x_test=FINE, y_test=[0, 2])
    assert refusal(path, "test") == f"{path}, test: labels must lie in 0..1; found 2"

    path = npz(tmp_path / "d.npz", x=FINE, y=[0, 1], classes=[2])
    assert refusal(path) == f'{path}: "classes" must be one integer; it is int64 of shape (1,)'

    broken = tmp_path / "broken.npz"
    for content in (b"", b"nonsense", path.read_bytes()[:100], path.read_bytes()[:-30]):
        broken.write_bytes(content)
        assert refusal(broken).startswith(f"{broken} is not a readable .npz file of numbers (")
    with broken.open("wb") as file:
        np.save(file, FINE)  # .npy content
    assert refusal(broken).startswith(f"{broken} is not a readable .npz file of numbers (")


def test_an_npz_file_is_read_again_only_after_it_changed(tmp_path: Path) -> None:
    path = npz(tmp_path / "d.npz", x=FINE, y=[0, 1])
    with memo.keeping():
        first = load(str(path), "train")
        assert load(str(path), "train") is first
        assert not first.x.flags.writeable and not first.y.flags.writeable
        npz(path, x=FINE, y=[0, 1], x_test=FINE, y_test=[1, 0])
        assert load(str(path), "train") is not first
        assert load(str(path), "test").y.tolist() == [1, 0]


def test_an_npz_file_never_runs_code(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, x=np.array([print], dtype=object), y=np.array([0]), allow_pickle=True)
    assert refusal(path) == f"{path} is not a readable .npz file of numbers (ValueError)"


def test_an_archive_that_lies_is_refused(tmp_path: Path) -> None:
    """About how an array begins, its compression, being encrypted, or it claims what no memory holds."""
    whole = npz(tmp_path / "whole.npz", x=np.zeros((2, 3)), y=[0, 1]).read_bytes()
    central = whole.index(b"PK\x01\x02")
    files = {
        "header": whole.replace(b"(2, 3)", b"(2,9e9"),
        "method": whole[: central + 10] + b"\x63" + whole[central + 11 :],
        "encrypted": whole[: central + 8] + b"\x01" + whole[central + 9 :],
    }
    for name, content in files.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
    claim = io.BytesIO()
    shape = {"descr": "<f8", "fortran_order": False, "shape": (2, 10**15)}
    np.lib.format.write_array_header_1_0(claim, shape)
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("x.npy", claim.getvalue())
    for name in (*files, "huge"):
        assert "is not a readable .npz file of numbers" in refusal(tmp_path / f"{name}.npz"), name
