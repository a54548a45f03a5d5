"""Values kept between messages: only when asked, once each, within the room there is."""

from math import inf
from threading import Thread

import pytest

from common import memo


class Made:
    """Counts how often a value was made."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> list[int]:
        self.times += 1
        return [self.times]


def test_nothing_is_kept_unless_asked() -> None:
    make = Made()
    assert [memo.once("key", make, len) for _ in range(3)] == [[1], [2], [3]]


def test_a_value_is_made_once_for_each_key_and_forgotten_at_the_end() -> None:
    make = Made()
    with memo.keeping():
        first = memo.once("a", make, len)
        assert memo.once("a", make, len) is first
        assert memo.once("b", make, len) == [2]
    assert memo.once("a", make, len) == [3]


def test_with_a_copy_nobody_holds_what_is_kept() -> None:
    make = Made()
    with memo.keeping():
        for _ in range(3):
            mine = memo.once("key", make, len, list.copy)
            assert mine == [1]
            mine.append(7)


@pytest.mark.parametrize("size", [memo.ROOM + 1, inf])
def test_what_finds_no_room_is_made_anew(size: float) -> None:
    make = Made()
    with memo.keeping():
        assert [memo.once("key", make, lambda _: size) for _ in range(2)] == [[1], [2]]


def test_the_room_is_for_all_values_together() -> None:
    make = Made()
    with memo.keeping():
        for key in ("a", "b", "a", "b"):
            memo.once(key, make, lambda _: memo.ROOM * 0.6)
    assert make.times == 3  # "a" once, "b" twice


def test_another_thread_keeps_nothing() -> None:
    make = Made()
    with memo.keeping():
        memo.once("key", make, len)
        thread = Thread(target=memo.once, args=("key", make, len))
        thread.start()
        thread.join()
    assert make.times == 2
