"""Data sets by name: what each source gives, and one sentence for each thing that can be wrong."""

import hashlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from common import decoders, memo
from common.datasets import Examples, fingerprint, load, split_validation
from common.errors import DataError
from tests.modules import importable

REPO = Path(__file__).parents[2]
CIFAR10 = Path(os.environ.get("SPECFED_TEST_CIFAR10", REPO.parent / "shared" / "data" / "cifar10"))
needs_cifar10 = pytest.mark.skipif(not CIFAR10.is_dir(), reason="no CIFAR-10 in Parquet files here")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECFED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refusal(spec: object, split: str = "train") -> str:
    with pytest.raises(DataError) as caught:
        load(str(spec), split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def picture(value: object, mode: str = "L", size: tuple[int, int] = (5, 4)) -> Image.Image:
    return Image.new(mode, size, value)


def in_another_process(code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        cwd=REPO,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# Digits and what a process imports for them


def test_digits() -> None:
    from sklearn.datasets import load_digits

    train, test = load("digits", "train"), load("digits", "test")
    assert (len(train), len(test)) == (1437, 360)
    assert (train.input_shape, train.classes, train.x.dtype, train.y.dtype) == (
        (1, 8, 8),
        10,
        np.uint8,
        np.int64,
    )
    # The split is stratified: a class has a fifth of its 174 to 183 pictures in the test half.
    assert np.bincount(test.y).tolist() == pytest.approx([36] * 10, abs=1)
    # Together they are all pictures, each once; 16 levels of grey became 255.
    bunch = load_digits()
    mine = sorted(x.tobytes() for part in (train, test) for x in part.x)
    assert mine == sorted(np.rint(x * 255 / 16).astype(np.uint8).tobytes() for x in bunch.images)
    assert train.x.max() == 255


def test_data_from_the_cache_imports_no_decoder() -> None:
    load("digits", "train")
    code = (
        "import sys; from common.datasets import load, fingerprint; "
        "print(fingerprint(load('digits', 'train')), "
        "[name for name in ('sklearn', 'datasets', 'PIL', 'torch', 'pandas') if name in sys.modules])"
    )
    assert in_another_process(code) == f"{fingerprint(load('digits', 'train'))} []"


def test_the_split_of_the_digits_is_fixed() -> None:
    assert fingerprint(load("digits", "train")) == "4a08780223068d0c"
    assert fingerprint(load("digits", "test")) == "440bbfb91c94acf4"


# Image folders


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
        f"folder {tmp_path / 'empty'} holds neither *.parquet files nor CLASS/*.png or *.jpg images"
    )


def test_a_half_that_cannot_be_decoded_leaves_nothing_in_the_cache(tmp_path: Path, cache: Path) -> None:
    folder = image_folder(tmp_path / "pictures")
    (folder / "train" / "cat" / "3.png").write_text("no image")
    refusal(folder)
    assert not cache.exists()


# Parquet folders and the hub


def cell(value: int) -> dict[str, object]:
    file = io.BytesIO()
    picture(value).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def parquet_folder(root: Path, image: str, label: str, typed: bool = True, **halves: list[int]) -> Path:
    """A picture of grey level ``10 * label`` for each label of each half."""
    import datasets

    features = {
        image: datasets.Image()
        if typed
        else {"bytes": datasets.Value("binary"), "path": datasets.Value("string")},
        label: datasets.ClassLabel(names=["a", "b", "c", "d"]) if typed else datasets.Value("int32"),
    }
    root.mkdir(parents=True, exist_ok=True)
    for half, labels in halves.items():
        rows = {image: [cell(10 * value) for value in labels], label: labels}
        table = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
        with decoders._no_progress_bars():
            table.to_parquet(root / f"{half}-00000-of-00001.parquet")
    return root


@pytest.mark.parametrize(("typed", "classes"), [(True, 4), (False, 3)])
def test_parquet_folders(tmp_path: Path, typed: bool, classes: int) -> None:
    folder = parquet_folder(tmp_path / "data", "img", "fine_label", typed, train=[2, 0, 1], test=[1, 0])
    test, train = load(str(folder), "test"), load(str(folder), "train")
    # ClassLabel names four classes; of plain labels, the training half's largest counts for both.
    assert train.classes == test.classes == classes
    assert (train.y.tolist(), train.x[:, 0, 0, 0].tolist()) == ([2, 0, 1], [20, 0, 10])
    assert (test.y.tolist(), test.x[:, 0, 0, 0].tolist()) == ([1, 0], [10, 0])
    assert train.input_shape == (1, 4, 5)


def test_columns_are_found_by_type_under_any_name(tmp_path: Path) -> None:
    folder = parquet_folder(tmp_path / "data", "scan", "diagnosis", train=[3, 1])
    assert load(str(folder), "train").y.tolist() == [3, 1]


def test_parquet_files_in_a_data_folder_in_several_parts(tmp_path: Path) -> None:
    folder = parquet_folder(tmp_path / "set" / "data", "image", "label", train=[1, 2])
    (folder / "train-00000-of-00001.parquet").rename(folder / "train-00001-of-00002.parquet")
    parquet_folder(folder, "image", "label", train=[3])
    assert load(str(folder.parent), "train").y.tolist() == [3, 1, 2]


def test_parquet_folders_that_cannot_be_used(tmp_path: Path) -> None:
    import datasets

    folder = parquet_folder(tmp_path / "a", "image", "label", train=[1])
    assert refusal(folder, "test") == f"folder {folder} has no files test-*.parquet"

    (folder / "train-00000-of-00001.parquet").write_bytes(b"PAR1 and then nothing")
    assert refusal(folder).startswith(f"cannot read train-*.parquet in {folder}: ArrowInvalid")

    untyped = parquet_folder(tmp_path / "b", "scan", "label", typed=False, train=[1])
    assert refusal(untyped) == (
        f"{untyped}, train has no column of type Image nor one named img or image; it has scan, label"
    )
    unlabelled = parquet_folder(tmp_path / "c", "image", "target", typed=False, train=[1])
    assert refusal(unlabelled) == (
        f"{unlabelled}, train has no column of type ClassLabel nor one named label or labels or fine_label; "
        "it has image, target"
    )
    numbers = tmp_path / "d"
    numbers.mkdir()
    with decoders._no_progress_bars():
        datasets.Dataset.from_dict({"image": [1, 2], "label": [0, 1]}).to_parquet(numbers / "train.parquet")
    assert refusal(numbers).startswith(f'{numbers}, train: column "image" holds no pictures: ')

    hidden = parquet_folder(tmp_path / "e", "image", "label", train=[0, -1])
    assert refusal(hidden) == f"{hidden}, train: labels must lie in 0..3; found -1"

    newer = parquet_folder(tmp_path / "f", "image", "label", typed=False, train=[0, 1], test=[2])
    assert refusal(newer, "test") == f"{newer}, test: labels must lie in 0..1; found 2"


@needs_cifar10
@pytest.mark.slow
def test_cifar10() -> None:
    train, test = load(str(CIFAR10), "train"), load(str(CIFAR10), "test")
    assert (len(train), len(test)) == (50_000, 10_000)
    assert (train.input_shape, train.classes, train.x.dtype) == ((3, 32, 32), 10, np.uint8)
    assert np.bincount(train.y).tolist() == [5_000] * 10
    assert np.bincount(test.y).tolist() == [1_000] * 10


def test_a_hub_data_set(tmp_path: Path, cache: Path) -> None:
    """Out of the library's own cache, laid out as it leaves it after a download."""
    import datasets

    parquet_folder(tmp_path / "source", "image", "label", train=[2, 1])
    with decoders._no_progress_bars():
        datasets.load_dataset(str(tmp_path / "source"), cache_dir=str(tmp_path / "built"))
    (info,) = (tmp_path / "built").glob("*/*/*/*/dataset_info.json")
    home = tmp_path / "home" / "datasets" / "owner___tiny" / "default" / "0.0.0" / "abc"
    shutil.copytree(info.parent, home)
    next(home.glob("*-train.arrow")).rename(home / "tiny-train.arrow")

    code = (
        "from common.datasets import load; e = load('owner/tiny', 'train'); "
        "print(e.y, e.x[:, 0, 0, 0], e.classes)"
    )
    offline = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    assert in_another_process(code, **offline) == "[2 1] [20 10] 4"
    shutil.rmtree(tmp_path / "home")
    assert in_another_process(code, **offline) == "[2 1] [20 10] 4"  # from our cache


def test_a_hub_data_set_that_cannot_be_had(tmp_path: Path) -> None:
    code = """
from common.datasets import load
from common.errors import DataError
for name in ("owner/nothing", "digts"):
    try:
        load(name, "test")
    except DataError as error:
        print(error)
"""
    lines = in_another_process(code, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1").split("\n")
    assert len(lines) == 2
    start = 'data set "owner/nothing" (test) is neither a path nor to be had from the Hugging Face hub: '
    assert lines[0].startswith(start)
    assert lines[1].endswith('Did you mean "digits"?')


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("/no/such/folder", "there is no such file or folder"),
        ("./data", "there is no such file or folder"),
        ("a/b/c", "there is no such file or folder"),
        ("", "a file"),
        ("no/such.npz", "there is no such file"),
    ],
)
def test_paths_that_lead_nowhere(
    spec: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if spec:
        assert refusal(spec) == f'data "{spec}": {reason}'
    else:
        assert "neither *.parquet files" in refusal(spec)  # the empty path is the current folder


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2")
    assert refusal(tmp_path / "data.csv") == (
        f'data "{tmp_path / "data.csv"}" is a file of a kind that cannot be read; takes .npz or a folder'
    )


# .npz files, and the checks that all sources share


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


# The user's own function


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = (
        "import numpy as np\n"
        "from common.datasets import Examples\n"
        "SIZE = {'train': 6, 'test': 2}\n"
        "def pair(split): return np.ones((SIZE[split], 4)), np.arange(SIZE[split])\n"
        "def lists(split): return [[1.0], [2.0]], [1, 0]\n"
        "def examples(split): return Examples(np.ones((2, 4), np.float32), np.array([0, 1]), 9)\n"
        "def nothing(split): pass\n"
        "def wrong(split): return np.ones((2, 4)), np.array([0, -3])\n"
        "def breaks(split): raise OSError('the disk is gone')\n"
    )
    with importable(tmp_path, monkeypatch, own_data=source):
        yield


def test_a_function_of_the_users_own(own_data: None) -> None:
    train, test = load("own_data:pair", "train"), load("own_data:pair", "test")
    assert (len(train), len(test)) == (6, 2)
    assert (train.classes, test.classes) == (6, 6)  # the training labels count for both
    assert load("own_data:examples", "test").classes == 9
    assert load("own_data:lists", "train").x.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("own_dat:pair", '"own_dat:pair": there is no module "own_dat" on the Python path'),
        (
            "own_data:pairs",
            '"own_data:pairs": module "own_data" has no function "pairs". Did you mean "pair"?',
        ),
        (
            "own_data:nothing",
            '"own_data:nothing" must return (x, y) or common.datasets.Examples; it returned NoneType',
        ),
        ("own_data:wrong", "own_data:wrong, train: labels must lie in 0..0; found -3"),
        ("own_data:breaks", '"own_data:breaks" failed with OSError: the disk is gone'),
    ],
)
def test_functions_that_cannot_be_used(own_data: None, spec: str, sentence: str) -> None:
    assert refusal(spec) == sentence


# Examples, fingerprints, validation rows


def test_rows_are_copies_in_order_with_repeats() -> None:
    examples = Examples(np.arange(6, dtype=np.uint8).reshape(3, 2), np.array([0, 1, 2]), 5)
    picked = examples.rows(np.array([2, 0, 2]))
    assert (picked.x.tolist(), picked.y.tolist(), picked.classes) == ([[4, 5], [0, 1], [4, 5]], [2, 0, 2], 5)
    picked.x[:] = 0
    assert examples.x[2].tolist() == [4, 5]
    assert len(picked) == 3


def test_a_fingerprint_is_a_hash_of_type_shape_and_values() -> None:
    examples = Examples(np.array([[1, 2], [3, 4]], np.uint8), np.array([0, 1]), 2)
    digest = hashlib.sha256()
    digest.update(b"|u1(2, 2)\x01\x02\x03\x04")
    digest.update(b"<i8(2,)" + bytes(8) + b"\x01" + bytes(7))
    assert fingerprint(examples) == digest.hexdigest()[:16]


def test_a_fingerprint_sees_values_and_not_memory() -> None:
    x, y = np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.array([0, 1])
    one = fingerprint(Examples(x, y, 2))
    assert fingerprint(Examples(np.asfortranarray(x), np.repeat(y, 2)[::2], 2)) == one
    others = [
        Examples(x.reshape(2, 4, 3), y, 2),
        Examples(x[::-1], y, 2),
        Examples(x, y[::-1], 2),
        Examples(x.view(np.uint8), y, 2),
    ]
    assert len({one, *map(fingerprint, others)}) == 5


ROWS = st.lists(st.integers(0, 30), max_size=40).map(lambda rows: np.array(rows, dtype=np.int64))


@given(ROWS, st.floats(0, 1, exclude_max=True), st.integers(0, 5))
def test_validation_rows(rows: np.ndarray, fraction: float, seed: int) -> None:
    train, validation = split_validation(rows, fraction, seed)
    distinct = len(set(rows.tolist()))
    assert len(validation) == max(0, min(round(fraction * distinct), distinct - 1))
    assert validation.tolist() == sorted(set(validation.tolist()))
    assert train.tolist() == [row for row in rows.tolist() if row not in set(validation.tolist())]
    again = split_validation(rows, fraction, seed)
    assert (again[0].tolist(), again[1].tolist()) == (train.tolist(), validation.tolist())


def test_validation_rows_depend_on_the_seed_and_not_on_the_order() -> None:
    rows = np.arange(100)
    chosen = [split_validation(rows, 0.2, seed)[1].tolist() for seed in range(3)]
    assert len(set(map(tuple, chosen))) == 3
    assert split_validation(rows[::-1], 0.2, 0)[1].tolist() == chosen[0]
    assert split_validation(rows, 0, 0)[1].tolist() == []


@pytest.mark.parametrize("fraction", [-0.1, 1, float("nan")])
def test_a_share_is_a_share(fraction: float) -> None:
    with pytest.raises(ValueError, match="0 <= fraction < 1"):
        split_validation(np.arange(4), fraction, 0)
