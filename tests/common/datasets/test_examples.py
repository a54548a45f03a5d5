"""Rows of examples, and their fingerprints."""

import hashlib

import numpy as np
import pytest

from common import datasets
from common.datasets import Examples, Picked, fingerprint


def test_rows_are_in_order_with_repeats_and_inputs_stay_where_they_are() -> None:
    examples = Examples(np.arange(6, dtype=np.uint8).reshape(3, 2), np.array([0, 1, 2]), 5)
    picked = examples.rows(np.array([2, 0, 2]))
    assert (np.asarray(picked.x).tolist(), picked.y.tolist()) == ([[4, 5], [0, 1], [4, 5]], [2, 0, 2])
    assert (len(picked), picked.classes, picked.input_shape) == (3, 5, (2,))
    assert isinstance(picked.x, Picked) and picked.x.source is examples.x
    taken = picked.x.take(np.array([1, 1, 0]))
    assert taken.tolist() == [[0, 1], [0, 1], [4, 5]]
    taken[:] = 0
    assert np.asarray(examples.x)[0].tolist() == [0, 1]
    again = picked.rows(np.array([1, 2]))
    assert isinstance(again.x, Picked) and again.x.source is examples.x
    assert (np.asarray(again.x).tolist(), again.y.tolist()) == ([[0, 1], [4, 5]], [0, 2])


def test_picked_rows_have_the_fingerprint_of_their_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = Examples(np.arange(60, dtype=np.float32).reshape(10, 2, 3), np.arange(10), 10)
    index = np.array([7, 0, 0, 9, 3])
    copied = fingerprint(Examples(np.asarray(examples.x)[index], index, 10))
    assert fingerprint(examples.rows(index)) == copied
    monkeypatch.setattr(datasets, "_BLOCK", 2)
    assert fingerprint(examples.rows(index)) == copied


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
