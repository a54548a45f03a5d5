"""A node of nobody's making: it speaks Flower's Fleet API itself and says false things in well-formed envelopes.

    python -m tests.integration.forger HOST:PORT

What it sends: a hello that claims to answer another message; in round 1 an object that is no message; in
round 2 bytes that are none; in round 3 one megabyte that is to be repeated 1000 times; at the end a score
that claims to come from another node.
"""

import json
import os
import sys
import time
from typing import Any

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client.grpc_rere_client.connection import grpc_request_response
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_id,
    get_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.retry import make_simple_grpc_retry_invoker

from common.ledger import NodeCard
from common.messages import card_record

Objects = dict[str, bytes]

CARD = NodeCard(
    name="forger",
    examples=400,
    classes=10,
    input_shape=(1, 8, 8),
    fingerprint="f" * 16,
    device="cpu",
    versions={},
)
CHUNK, TIMES = 1 << 20, 1000


def made(kind: str, body: bytes, *children: str) -> tuple[str, bytes]:
    """An object of Flower's, by its id."""
    content = f"{kind} {','.join(children)} {len(body)}".encode() + HEAD_BODY_DIVIDER + body
    return get_object_id(content), content


def whole(reply: Message) -> tuple[str, Objects, ObjectTree]:
    objects = {i: one.deflate() for i, one in get_all_nested_objects(reply).items()}
    return reply.object_id, objects, get_object_tree(reply)


def no_message() -> tuple[str, Objects, ObjectTree]:
    record = ConfigRecord({"a": 1})
    return record.object_id, {record.object_id: record.deflate()}, ObjectTree(object_id=record.object_id)


def no_bytes() -> tuple[str, Objects, ObjectTree]:
    name, content = made("ArrayRecord", b"\xff\xff\xff")
    return name, {name: content}, ObjectTree(object_id=name)


def bomb(asked: Message) -> tuple[str, Objects, ObjectTree]:
    """A reply with one array, whose only piece it names a thousand times."""
    array = {
        "dtype": "uint8",
        "shape": [CHUNK * TIMES],
        "stype": "safetensors",
        "arraychunk_ids": [0] * TIMES,
    }
    envelope = get_object_body(Message(RecordDict(), reply_to=asked).deflate(), Message)
    name, content = made("ArrayChunk", os.urandom(CHUNK))
    objects, tree = {name: content}, ObjectTree(object_id=name)
    for kind, body in (
        ("Array", json.dumps(array)),
        ("ArrayRecord", '{"w": "%s"}'),
        ("RecordDict", '{"update": "%s"}'),
        ("Message", envelope),
    ):
        within = name
        written = body if isinstance(body, bytes) else body.replace("%s", within).encode()
        name, content = made(kind, written, within)
        objects[name], tree = content, ObjectTree(object_id=name, children=[tree])
    return name, objects, tree


def claims(asked: Message, content: RecordDict, **false: Any) -> tuple[str, Objects, ObjectTree]:
    """A reply whose own metadata say something else than its envelope."""
    reply = Message(content, reply_to=asked)
    for name, value in false.items():
        reply.metadata.__dict__[f"_{name}"] = value
    return whole(reply)


def answer(asked: Message) -> tuple[str, Objects, ObjectTree]:
    kind = asked.metadata.message_type
    if kind == "query.hello":
        return claims(asked, RecordDict({"card": card_record(CARD)}), reply_to_message_id="f" * 64)
    if kind == "evaluate":
        score = MetricRecord({"num-examples": 9, "loss": 0.1, "accuracy": 0.5})
        return claims(asked, RecordDict({"metrics": score}), src_node_id=123456789)
    return [no_message, no_bytes, lambda: bomb(asked)][int(asked.content["config"]["round"]) - 1]()  # type: ignore[arg-type, index]


def main(address: str) -> None:
    with grpc_request_response(address, True, make_simple_grpc_retry_invoker()) as fleet:
        _, receive, send, _, _, pull_object, push_object, confirm = fleet
        while True:
            got = receive()
            if got is None:
                time.sleep(0.2)
                continue
            envelope, tree = got
            run = envelope.metadata.run_id
            asked = pull_and_inflate_object_from_tree(
                tree, lambda i, run=run: pull_object(run, i), lambda i, run=run: confirm(run, i)
            )
            asked.metadata.__dict__["_message_id"] = envelope.metadata.message_id
            root, objects, told = answer(asked)
            reply = Message(RecordDict(), reply_to=asked)
            reply.metadata.__dict__["_message_id"] = root
            missing, session = send(reply, told, 0.1)
            for name in missing:
                push_object(run, session, name, objects[name])


if __name__ == "__main__":
    main(sys.argv[1])
