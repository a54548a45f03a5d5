"""How a reply that came through the SuperLink becomes a message: under its envelope, or as its node's error.

Flower checks a reply's envelope, and then believes what the reply's own bytes say of it: whom it answers, who
sent it, what it is, how often a piece of a tensor is repeated. So one node could end a run, or fill the
server's memory. Here a reply has the metadata of its envelope, takes no more memory than it may, and one that
cannot be read is an error of its node's.

Flower has no place for this: the reader of its grid is exchanged while replies are pulled. A grid that reads
in another way is left as it is.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.app import Array, ArrayRecord, Error, Message
from flwr.common.serde_utils import metadata_from_proto
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_head_values_from_object_content,
)

GRID = "flwr.superlink.grid.http_grid"
UNREADABLE = 101  # code of the error that stands in for a reply
SPARE = 1 << 26  # bytes that any reply may take
TIMES = 16  # and so many times what the largest message holds that was sent


def largest_reply(sent: Iterable[Message]) -> int:
    """Bytes that a reply to one of these messages may take."""
    return SPARE + TIMES * max((_held(message) for message in sent), default=0)


@contextmanager
def guarded(largest: int) -> Iterator[None]:
    """Meanwhile Flower's grid reads replies so, of at most ``largest`` bytes each."""
    grid: Any = sys.modules.get(GRID)  # not loaded in a process without it
    names = ("RuntimeHttpClient", "inflate_object_from_contents", "make_message")
    if not all(hasattr(grid, name) for name in names):
        yield
        return
    client, inflate = grid.RuntimeHttpClient, grid.inflate_object_from_contents
    pull = client.PullMessages
    envelopes: dict[str, Any] = {}

    def pulled(self: Any, request: Any) -> Any:
        answer = pull(self, request)
        envelopes.update({one.metadata.message_id: one.metadata for one in answer.messages_list})
        return answer

    def read(object_id: str, contents: Mapping[str, bytes], *rest: Any, **more: Any) -> Message:
        content = error = None
        try:
            if (size := expanded(contents)) > largest:
                raise ValueError(f"it would take {size:,} bytes of memory; it may take {largest:,}")
            message = inflate(object_id, contents, *rest, **more)
            if not isinstance(message, Message):
                raise TypeError(f"it is no message but of type {type(message).__name__}")
            content, error = (None, message.error) if message.has_error() else (message.content, None)
        except Exception as problem:  # bytes made to break a reader do so in many ways
            error = Error(UNREADABLE, f"the reply cannot be read: {type(problem).__name__}: {problem}")
        envelope = metadata_from_proto(envelopes[object_id])
        made: Message = grid.make_message(metadata=envelope, content=content, error=error)
        return made

    client.PullMessages, grid.inflate_object_from_contents = pulled, read
    try:
        yield
    finally:
        client.PullMessages, grid.inflate_object_from_contents = pull, inflate


def expanded(contents: Mapping[str, bytes]) -> int:
    """Bytes of a reply's objects, by their ids, once tensors are put together: a piece counts as often as its
    tensor names it, and a tensor as often as a record does. Raises what broken objects make of themselves."""
    heads = {i: get_object_head_values_from_object_content(content) for i, content in contents.items()}
    arrays = {
        i: sum(len(contents[children[piece]]) for piece in _body(contents[i], Array)["arraychunk_ids"])
        for i, (kind, children, _) in heads.items()
        if kind == "Array"
    }
    named = [
        arrays[array]
        for i, (kind, _, _) in heads.items()
        if kind == "ArrayRecord"
        for array in _body(contents[i], ArrayRecord).values()
    ]
    return sum(map(len, contents.values())) + sum(arrays.values()) + sum(named)


def _body(content: bytes, kind: type[InflatableObject]) -> Any:
    return json.loads(get_object_body(content, kind))


def _held(message: Message) -> int:
    if not message.has_content():
        return 0
    return sum(len(x.data) for record in message.content.array_records.values() for x in record.values())
