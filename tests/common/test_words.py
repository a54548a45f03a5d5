"""Texts as numbers of words."""

import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from common import words
from tests.common.datasets.sources import in_another_process


def number(word: str) -> int:
    return zlib.crc32(word.encode()) % 16_383 + 1


def test_words_and_signs_are_numbered_in_their_order() -> None:
    (row,) = words.numbered(["Stocks up 3.5%, don't PANIC"])
    spoken = ["stocks", "up", "3", ".", "5", "%", ",", "don", "'", "t", "panic"]
    expected = [number(word) for word in spoken]
    assert row[: len(expected)].tolist() == expected
    assert not row[len(expected) :].any()


def test_the_check_value_of_crc32() -> None:
    """0xCBF43926 is that of the digits 1 to 9, in every description of the code."""
    assert words.numbered(["123456789"])[0, 0] == 0xCBF43926 % 16_383 + 1


def test_no_text_and_one_that_is_too_long() -> None:
    assert words.numbered([]).shape == (0, 256)
    empty, long = words.numbered(["  \n", "b " + "a " * 300 + "c"])
    assert not empty.any()
    assert long.tolist() == [number("b"), *[number("a")] * 255]


@given(st.lists(st.text(max_size=40), max_size=4))
def test_numbers_are_whole_and_zeros_come_last(texts: list[str]) -> None:
    rows = words.numbered(texts)
    assert rows.dtype == np.float32 and rows.shape == (len(texts), 256)
    assert ((rows >= 0) & (rows < 16_384) & (rows == np.floor(rows))).all()
    counts = (rows > 0).sum(1)
    assert all((row[:n] > 0).all() for row, n in zip(rows, counts, strict=True))
    assert np.array_equal(rows, words.numbered([text.casefold() for text in texts]))


def test_another_process_numbers_alike() -> None:
    code = "from common.words import numbered; print(numbered(['Zwölf grüne Äpfel'])[0, :4].tolist())"
    assert in_another_process(code, PYTHONHASHSEED="7") == str(
        words.numbered(["zwölf GRÜNE äpfel"])[0, :4].tolist()
    )
