"""Foreign text becomes one visible line; JSON for people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.text import LONGEST, one_line, to_json


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("the data of site-2 are empty", "the data of site-2 are empty"),
        ("a\r\nb\u2028c\td", "a b c d"),
        ("\x1b[31mred\x07\u202e", "\ufffd[31mred\ufffd\ufffd"),
        ("\ud800 größer", "\ufffd größer"),
        (" \n", ""),
        ("A" * 5_000_000, "A" * (LONGEST - 1) + "…"),
    ],
)
def test_examples(text: str, line: str) -> None:
    assert one_line(text) == line


@given(st.text())
def test_a_line_is_printable_and_stays_what_it_is(text: str) -> None:
    line = one_line(text)
    assert line.isprintable() and len(line) <= LONGEST and one_line(line) == line


def test_json_for_people_is_stable() -> None:
    assert to_json({"b": 1, "a": "ä"}) == '{\n  "a": "ä",\n  "b": 1\n}\n'
