"""Replies that lie or break."""

from collections.abc import Callable

import numpy as np
from flwr.app import Message

from common.messages import PACKED, pack, unpack

Change = Callable[[Message, int], Message]


def with_arrays(record: str, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Change:
    def on_reply(reply: Message, _: int) -> Message:
        reply.content[record] = pack(change(unpack(reply.content.array_records[record])))
        return reply

    return on_reply


def with_examples(value: object) -> Change:
    def on_reply(reply: Message, _: int) -> Message:
        reply.content.metric_records["metrics"]["num-examples"] = value  # type: ignore[assignment]
        return reply

    return on_reply


def without_record(name: str) -> Change:
    def on_reply(reply: Message, _: int) -> Message:
        del reply.content[name]
        return reply

    return on_reply


def garbage(reply: Message, _: int) -> Message:
    reply.content.array_records["update"][PACKED].data = b"not an array"
    return reply


def raising(reply: Message, _: int) -> Message:
    raise RuntimeError("boom on purpose")


BAD = {
    "nan": (with_arrays("update", lambda u: u | {"0.bias": u["0.bias"] * np.nan}), "holds NaN or infinity"),
    "shape": (
        with_arrays("update", lambda u: u | {"0.bias": u["0.bias"][:1]}),
        "has shape (1,); it takes (48,)",
    ),
    "type": (with_arrays("update", lambda u: u | {"0.bias": u["0.bias"].astype("f8")}), "it takes float32"),
    "missing": (
        with_arrays("update", lambda u: {k: v for k, v in u.items() if k != "0.bias"}),
        'lacks "0.bias"',
    ),
    "extra": (with_arrays("update", lambda u: u | {"x": u["0.bias"]}), 'has "x", which the model has not'),
    "count": (with_examples(10**12), "num-examples is 1000000000000"),
    "negative": (with_examples(-150), "num-examples is -150"),
    "no update": (without_record("update"), "has no record 'update'"),
    "garbage": (garbage, "cannot be read"),
    "raises": (raising, "boom on purpose"),
}
