"""The grid that waits for replies, and a reply that is announced but never arrives whole."""

import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError, pull_objects

from specfed.local_grid import own_identity
from strategies import flower
from strategies.flower import PollingGrid


def missing(object_id: str) -> bytes:
    raise ObjectUnavailableError(object_id)


def whole(object_id: str) -> bytes:
    return b"whole"


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
                pull_objects([message_id], missing if message_id == "b" else whole)
                error = ""
            except ObjectPullError as gone:
                error = str(gone)
            replies.append(
                SimpleNamespace(error=error, metadata=SimpleNamespace(reply_to_message_id=message_id))
            )
        return replies


def test_a_reply_cut_off_in_the_middle_holds_up_neither_round_nor_roster() -> None:
    with own_identity():
        asked = [Message(RecordDict(), 1, "train")]
    for ask in (
        lambda grid: grid.send_and_receive(asked, timeout=0.5),
        lambda grid: [*grid.pull_messages(["a", "b"]), *grid.pull_messages(["c"])],
    ):
        started = time.monotonic()
        replies: Any = ask(PollingGrid(HalfSent()))  # type: ignore[arg-type]
        assert time.monotonic() - started < 10
        errors = {r.metadata.reply_to_message_id: bool(r.error) for r in replies}
        assert errors == {"a": False, "b": True, "c": False}


class Troubled:
    """A grid whose server answers with this status first, and then has a reply."""

    def __init__(self, status: int, times: int) -> None:
        self.status, self.times = status, times

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return ["a"]

    def pull_messages(self, message_ids: Iterable[str]) -> list[SimpleNamespace]:
        self.times -= 1
        if self.times >= 0:
            request = httpx.Request("POST", "http://127.0.0.1/v1/runtime/pull-messages")
            httpx.Response(self.status, request=request).raise_for_status()
        return [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="a"))]


def test_a_server_in_trouble_is_asked_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    with own_identity():
        asked = [Message(RecordDict(), 1, "train")]

    def replies(status: int, times: int) -> list[Message]:
        grid: Any = Troubled(status, times)
        return PollingGrid(grid, interval=0.01).send_and_receive(asked)

    assert len(replies(500, 3)) == 1
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        replies(404, 1)
    monkeypatch.setattr(flower, "TROUBLE_SECONDS", 0.1)
    with pytest.raises(httpx.HTTPStatusError, match="500"):
        replies(500, 10_000)
