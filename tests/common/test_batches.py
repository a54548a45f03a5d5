"""Rows of examples as tensors."""

import warnings

import numpy as np
import pytest
import torch

from common.batches import to_tensors
from common.datasets import Examples

CPU = torch.device("cpu")


def test_bytes_are_scaled_to_minus_two_to_two() -> None:
    examples = Examples(np.arange(256, dtype=np.uint8).reshape(64, 1, 2, 2), np.arange(64), 64)
    x, y = to_tensors(examples, np.array([63, 0, 0]), CPU)
    expected = (examples.x[[63, 0, 0]].astype(np.float64) / 255 - 0.5) / 0.25
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    np.testing.assert_allclose(x.numpy(), expected, atol=1e-6)
    assert y.tolist() == [63, 0, 0]
    assert x.max().item() == pytest.approx(2)
    assert x.min().item() == -2


def test_floats_pass_as_they_are() -> None:
    examples = Examples(np.array([[0.1, 300], [-5, 2]], np.float32), np.array([1, 0]), 2)
    x, y = to_tensors(examples, np.array([1, 0, 1]), CPU)
    assert np.array_equal(x.numpy(), examples.x[[1, 0, 1]])
    assert y.tolist() == [0, 1, 0]


def test_the_data_itself_is_neither_shared_nor_changed() -> None:
    examples = Examples(np.ones((2, 3), np.float32), np.array([0, 1]), 2)
    examples.x.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTorch warns of tensors over read-only memory
        x, _ = to_tensors(examples, np.arange(2), CPU)
    x.zero_()
    assert examples.x.min() == 1


def test_no_rows_are_empty_tensors() -> None:
    examples = Examples(np.ones((2, 1, 4, 4), np.uint8), np.array([0, 1]), 2)
    x, y = to_tensors(examples, np.array([], dtype=np.int64), CPU)
    assert (x.shape, y.shape) == ((0, 1, 4, 4), (0,))
