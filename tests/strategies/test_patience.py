"""Replies that are announced but never arrive whole: Flower's own wait, bounded."""

import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError, pull_objects

from strategies import patience as module
from strategies.flower import PollingGrid
from strategies.patience import patience


def missing(object_id: str) -> bytes:
    raise ObjectUnavailableError(object_id)


def late(after: float) -> Callable[[str], bytes]:
    """A tensor that arrives ``after`` seconds from now."""
    there = time.monotonic() + after

    def pull(object_id: str) -> bytes:
        return missing(object_id) if time.monotonic() < there else b"whole"

    return pull


def test_flower_gives_up_on_what_never_arrives_when_it_is_told_to() -> None:
    started = time.monotonic()
    with patience(0.2), pytest.raises(ObjectPullError):
        pull_objects(["a"], missing)
    assert time.monotonic() - started < 5


def test_what_arrives_in_time_comes_through() -> None:
    with patience(30):
        assert pull_objects(["a", "b"], late(0.5)) == {"a": b"whole", "b": b"whole"}


def test_what_is_there_comes_through_when_time_is_up() -> None:
    with patience(-1):
        assert pull_objects(["a"], late(0)) == {"a": b"whole"}


def test_flower_is_as_before_afterwards_and_never_waits_longer() -> None:
    before = dict(pull_objects.__kwdefaults__)
    with pytest.raises(ZeroDivisionError), patience(1.0):
        assert pull_objects.__kwdefaults__["max_time"] == 1.0
        raise ZeroDivisionError
    assert pull_objects.__kwdefaults__ == before
    with patience(1e9):
        assert pull_objects.__kwdefaults__["max_time"] == before["max_time"]


@pytest.mark.parametrize("place", ["flwr.not_there", "flwr.app"])
def test_a_flower_without_that_wait_is_left_alone(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(pull_objects.__kwdefaults__)
    monkeypatch.setattr(module, "PLACE", place)
    with patience(1.0):
        assert pull_objects.__kwdefaults__ == before


class HalfSent:
    """A grid as Flower's: reply a is whole, reply b was announced and never came, reply c was not yet
    announced when the first look began."""

    def __init__(self) -> None:
        self.announced = {"a", "b"}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return ["a", "b", "c"]

    def pull_messages(self, message_ids: Iterable[str]) -> list[SimpleNamespace]:
        replies, found = [], sorted(self.announced.intersection(message_ids), reverse=True)
        self.announced.add("c")
        for message_id in found:  # b before a: it must not keep a from coming
            try:
                pull_objects([message_id], missing if message_id == "b" else late(0))
                error = ""
            except ObjectPullError as gone:
                error = str(gone)
            replies.append(
                SimpleNamespace(error=error, metadata=SimpleNamespace(reply_to_message_id=message_id))
            )
        return replies


def test_a_reply_cut_off_in_the_middle_holds_up_neither_round_nor_roster() -> None:
    for ask in (
        lambda grid: grid.send_and_receive([None], timeout=0.5),
        lambda grid: [*grid.pull_messages(["a", "b"]), *grid.pull_messages(["c"])],
    ):
        started = time.monotonic()
        replies: Any = ask(PollingGrid(HalfSent()))  # type: ignore[arg-type]
        assert time.monotonic() - started < 10
        errors = {r.metadata.reply_to_message_id: bool(r.error) for r in replies}
        assert errors == {"a": False, "b": True, "c": False}
