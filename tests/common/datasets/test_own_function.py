"""Data from the user's own function."""

from pathlib import Path

import pytest

from common.datasets import load
from tests.common.datasets.sources import refusal
from tests.modules import importable


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = (
        "import numpy as np\n"
        "from common.datasets import Examples\n"
        "SIZE = {'train': 6, 'test': 2}\n"
        "def pair(split): return np.ones((SIZE[split], 4)), np.arange(SIZE[split])\n"
        "def lists(split): return [[1.0], [2.0]], [1, 0]\n"
        "def examples(split): return Examples(np.ones((2, 4), np.float32), np.array([0, 1]), 9)\n"
        "def ragged(split): return [[1.0], [2.0, 3.0]], [1, 0]\n"
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
        (
            "own_data:ragged",
            '"own_data:ragged" must return rows of one shape: setting an array element with a sequence. The '
            "requested array has an inhomogeneous shape after 1 dimensions. The detected shape was (2,) + "
            "inhomogeneous part.",
        ),
        ("own_data:wrong", "own_data:wrong, train: labels must lie in 0..0; found -3"),
        ("own_data:breaks", '"own_data:breaks" failed with OSError: the disk is gone'),
    ],
)
def test_functions_that_cannot_be_used(own_data: None, spec: str, sentence: str) -> None:
    assert refusal(spec) == sentence
