"""Texts as rows of numbers, the same at every site without a vocabulary to agree on."""

import re
import zlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

LENGTH = 256  # words of a text that count, the first ones
NUMBERS = 2**14  # that words are known by; 0 is no word

_WORD = re.compile(r"\w+|[^\w\s]")


def numbered(texts: Iterable[str]) -> npt.NDArray[np.float32]:
    """The words of each text by number, in their order: ``(n, LENGTH)``, whole numbers below ``NUMBERS``.

    A word is a run of letters and digits, or another sign; its case does not count. Its number is its CRC-32
    modulo ``NUMBERS - 1`` plus 1, so that a few words share one (the hashing trick, Weinberger et al.,
    2009). What a text is shorter is zeros at its end. The numbers are float32 as all inputs are, which holds
    them exactly.
    """
    rows = [[_number(word) for word in _WORD.findall(text.casefold())[:LENGTH]] for text in texts]
    padded = np.zeros((len(rows), LENGTH), dtype=np.float32)
    for row, found in zip(padded, rows, strict=True):
        row[: len(found)] = found
    return padded


def _number(word: str) -> int:
    return zlib.crc32(word.encode()) % (NUMBERS - 1) + 1
