"""Rows of examples, and their fingerprints."""

import hashlib

import numpy as np

from common.datasets import Examples, fingerprint


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
