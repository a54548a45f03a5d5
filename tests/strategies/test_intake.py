"""What replies take of the server's memory, against what they may."""

from collections.abc import Iterator

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from common.messages import pack
from specfed.local_grid import own_identity
from strategies.intake import SPARE, TIMES, expanded, largest_reply

MODEL = {"a.weight": np.zeros((300, 1000), np.float32), "a.bias": np.zeros(300, np.float32)}
BYTES = sum(x.nbytes for x in MODEL.values())


@pytest.fixture(autouse=True)
def identity() -> Iterator[None]:
    with own_identity():
        yield


def message(*slots: str) -> Message:
    return Message(RecordDict({slot: pack(MODEL) for slot in slots}), 1, "train")


def test_a_tensor_counts_as_it_travels_as_it_is_put_together_and_as_it_is_named() -> None:
    objects = {i: one.deflate() for i, one in get_all_nested_objects(message("update")).items()}
    assert 3 * BYTES <= expanded(objects) < 3 * BYTES + 10_000


def test_a_reply_with_everything_that_nodes_send_may_come() -> None:
    """Of the same tensors twice Flower sends one copy; they count twice all the same."""
    reply = message("update", "control", "gradient", "momentum")
    objects = {i: one.deflate() for i, one in get_all_nested_objects(reply).items()}
    most = largest_reply([message("arrays"), Message(RecordDict(), 1, "query.hello")])
    assert SPARE + TIMES * BYTES <= most < SPARE + TIMES * (BYTES + 10_000)
    assert expanded(objects) < most - SPARE
    assert largest_reply([]) == SPARE
