"""Tables of texts and of numbers, in folders of Parquet and of CSV files."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from common import tables, words
from common.datasets import Examples, load
from tests.common.datasets.sources import picture, refusal

CSV = "age,smokes,label,dose\n40,True,1,0.5\n61,False,0,2\n33,False,2,-1e3\n"


def csv_folder(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def parquet(file: Path, rows: dict[str, list[object]], **types: str) -> Path:
    import datasets

    names = types.pop("names", "").split()
    features = {name: datasets.Value(kind) for name, kind in types.items()}
    features["label"] = datasets.ClassLabel(names=names) if names else datasets.Value("int8")
    file.parent.mkdir(parents=True, exist_ok=True)
    table = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    with tables._no_progress_bars():
        table.to_parquet(file)
    return file.parent


def test_a_csv_table_of_numbers(tmp_path: Path) -> None:
    folder = csv_folder(tmp_path / "a", train=CSV, test="age,smokes,label,dose\n50,True,0,1\n")
    train, test = load(str(folder), "train"), load(str(folder), "test")
    assert train.x.tolist() == [[40, 1, 0.5], [61, 0, 2], [33, 0, -1000]]
    assert (train.x.dtype, train.y.tolist(), train.classes, train.names) == (np.float32, [1, 0, 2], 3, ())
    assert train.columns == ("age", "smokes", "dose")
    assert (test.x.tolist(), test.y.tolist(), test.classes) == ([[50, 1, 1]], [0], 3)
    again = load(str(folder), "train")  # from the cache
    assert (again.columns, again.naming) == (train.columns, train.naming)


def test_a_csv_table_in_several_files(tmp_path: Path) -> None:
    header = "a,label\n"
    folder = csv_folder(tmp_path / "x" / "data", **{f"train-{i}": f"{header}{i},{i}\n" for i in range(3)})
    assert load(str(folder.parent), "train").x.tolist() == [[0], [1], [2]]


def test_a_parquet_table_of_numbers(tmp_path: Path) -> None:
    rows: dict[str, list[object]] = {"b": [1, 2], "a": [0.25, 0.5], "label": [1, 0]}
    folder = parquet(tmp_path / "p" / "train.parquet", rows, b="uint16", a="float64", names="no yes maybe")
    examples = load(str(folder), "train")
    assert (examples.x.tolist(), examples.classes) == ([[1, 0.25], [2, 0.5]], 3)
    assert (examples.names, examples.columns) == (("no", "yes", "maybe"), ("b", "a"))


def test_the_naming_tells_columns_apart(tmp_path: Path) -> None:
    def naming(name: str, header: str) -> str:
        return load(str(csv_folder(tmp_path / name, train=f"{header}\n1,2,0\n")), "train").naming

    one = naming("a", "age,dose,label")
    assert len(one) == 16 and naming("b", "age,dose,label") == one
    assert len({one, naming("c", "dose,age,label"), naming("d", "age,weight,label")}) == 3
    # Of classes alone it is what older runs have in their ledgers.
    classes = Examples(np.zeros((1, 2), np.float32), np.zeros(1, np.int64), 2, ("a", "b"))
    assert classes.naming == hashlib.sha256(b'["a", "b"]').hexdigest()[:16]


def test_texts(tmp_path: Path) -> None:
    rows: dict[str, list[object]] = {"id": [7, 8], "text": ["Up and up", ""], "label": [1, 0]}
    folder = parquet(tmp_path / "t" / "train.parquet", rows, id="int64", text="string", names="sport world")
    examples = load(str(folder), "train")
    assert np.array_equal(examples.x, words.numbered(["up and up", ""]))
    assert (examples.input_shape, examples.names, examples.columns) == ((256,), ("sport", "world"), ())
    csv = csv_folder(tmp_path / "c", train='label,sentence\n0,"one, two"\n1,three\n')
    assert np.array_equal(load(str(csv), "train").x, words.numbered(["one, two", "three"]))


def test_pictures_come_before_csv_files(tmp_path: Path) -> None:
    folder = csv_folder(tmp_path / "mixed", train=CSV)
    (folder / "train" / "cat").mkdir(parents=True)
    picture(3).save(folder / "train" / "cat" / "1.png")
    assert load(str(folder), "train").names == ("cat",)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("age,label\n1,0\n,1\n", '{0}, train, row 1: column "age" holds no number'),
        (
            "a,b,label\n1,inf,0\n",
            "{0}, train: x must be finite as float32; row 0 has a NaN or infinite number",
        ),
        (
            "age,sex,label\n1,f,0\n",
            '{0}, train: column "sex" holds no numbers, as each column beside the label must; texts stand in '
            "one named text or sentence or content, pictures in one named img or image",
        ),
        (
            ",age,label\n0,1,0\n",
            "{0}, train has a column without a name. If it counts the rows, leave it out",
        ),
        ("label\n1\n", "{0}, train has no column beside the label"),
        ("age,label\n1,0\n2,\n", "{0}, train, row 1 has no label"),
        ("age,label\n1,yes\n", "{0}, train: labels must be integers; they have type "),
        (
            "age,target\n1,0\n",
            "{0}, train has no column of type ClassLabel nor one named label or labels or fine_label; "
            "it has age, target",
        ),
        ("text,label\nup,0\n,1\n", "{0}, train, row 1 has no text"),
        ("age,label\n", "{0}, train: "),
        ("", "cannot read train-*.csv in {0}: "),
    ],
)
def test_csv_tables_that_cannot_be_used(tmp_path: Path, text: str, sentence: str) -> None:
    folder = csv_folder(tmp_path / "t", train=text)
    assert refusal(folder).startswith(sentence.format(folder))


def test_a_split_that_is_not_there(tmp_path: Path) -> None:
    folder = csv_folder(tmp_path / "t", train=CSV)
    assert refusal(folder, "test") == f"folder {folder} has no files test-*.csv"
    other = csv_folder(tmp_path / "o", records=CSV)
    assert refusal(other) == (
        f"folder {other} holds neither *.parquet files nor CLASS/*.png or *.jpg images nor train*.csv"
    )
