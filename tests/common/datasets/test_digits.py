"""The embedded digits, and what a process imports for them."""

import numpy as np
import pytest

from common.datasets import fingerprint, load
from tests.common.datasets.sources import in_another_process


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
