"""The wire between server and nodes: what a message holds and how tensors travel.

==========  =====================  =============================================================
direction   record                 content
==========  =====================  =============================================================
to a node   ``arrays``             the global model's parameters, by name
            ``buffers``            its buffers (BatchNorm statistics and the like), by name
            ``slot.NAME``          what the algorithm broadcasts beside them (``common.slots``)
            ``config``             run, round, learning rate, input shape, classes; era and round of the
                                   node's last accepted reply
from a node ``update``             trained minus received parameters, by name; or coordinates of it
            ``buffers``            its buffers after training
            ``report.NAME``        what the algorithm reports beside them
            ``metrics``            ``num-examples``, ``steps``, losses, seconds, drift numbers
==========  =====================  =============================================================

Parameters and buffers are apart because only parameters are filtered, scored and drifted; integer
buffers stay integers. Tensors travel as safetensors: no pickle, and nothing that names a class.
"""

import re
from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from numpy.typing import NDArray
from safetensors.numpy import load, save

from common.config import IN_WORDS, NAME_PATTERN
from common.errors import SpecfedError
from common.ledger import NodeCard
from common.params import Arrays

ARRAYS, BUFFERS, CONFIG, UPDATE, METRICS, CARD = "arrays", "buffers", "config", "update", "metrics", "card"
SLOT, REPORT = "slot.", "report."  # before a slot's name
ERA, ACCEPTED, LEARNING_RATE, RUN = "era", "accepted", "learning-rate", "run"  # of the config record
MEMORY_LOST = "memory-lost"  # metric of a node that does not have what its last accepted reply left
HELLO, REFUSED = "query.hello", "query.refused"
REASON = "reason"  # of a refusal, in the config record
PACKED, SAFETENSORS = "packed", "safetensors"  # an array's name and format: all tensors of a record in one
ERROR_CODE = 100  # ours; Flower's own are below
LONGEST_CARD = 10_000  # characters; a card has a few hundred
LARGEST = 2**53  # number of a card, and beyond any real one


def pack(arrays: Mapping[str, NDArray[np.generic]]) -> ArrayRecord:
    """Named arrays as a Flower record, all in one piece. Numbers only.

    Flower sends, stores, hashes and asks for every array of a record by itself, which takes seconds a round
    for a model of many small tensors.
    """
    if not arrays:
        return ArrayRecord({})
    # safetensors sorts its tensors; a number before the name keeps the sender's order.
    numbered = {f"{i:06d} {name}": np.asarray(x, order="C") for i, (name, x) in enumerate(arrays.items())}
    data = save(numbered)
    return ArrayRecord({PACKED: Array("uint8", (len(data),), SAFETENSORS, data)})


def unpack(record: ArrayRecord) -> Arrays:
    """A Flower record as named arrays, with the shapes and types that were really sent.

    Takes what ``pack`` makes, and records of plain numpy arrays, as Flower itself makes them. Raises
    ValueError for bytes that are neither.
    """
    if PACKED in record and record[PACKED].stype == SAFETENSORS:
        return _unpacked(record)
    return {name: _plain(name, array) for name, array in record.items()}


def as_flower(arrays: Mapping[str, NDArray[np.generic]]) -> ArrayRecord:
    """Named arrays as a Flower record, each for itself: what ClientApps that are not ours understand."""
    return ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in arrays.items()})


def _unpacked(record: ArrayRecord) -> Arrays:
    if len(record) > 1:
        raise ValueError(f'the record has {len(record)} arrays; "{PACKED}" takes all tensors')
    try:
        loaded = load(record[PACKED].data)
    except Exception as error:  # a type that numpy has not is a KeyError
        raise ValueError(f"the tensors are no safetensors: {type(error).__name__}: {error}") from None
    return {name.partition(" ")[2]: x for name, x in sorted(loaded.items())}


def _plain(name: str, array: Array) -> NDArray[np.generic]:
    try:
        value = array.numpy()
    except Exception as error:  # bytes that were made to break numpy's reader do so in many ways
        raise ValueError(f'tensor "{name}" is no plain array: {type(error).__name__}: {error}') from None
    if not isinstance(value, np.ndarray):  # numpy reads whole archives as well
        raise ValueError(f'tensor "{name}" is no plain array: {type(value).__name__}')
    return value


def card_record(card: NodeCard) -> ConfigRecord:
    """A node's card as a Flower record."""
    return ConfigRecord({"json": card.model_dump_json(by_alias=True)})


def read_card(record: ConfigRecord) -> NodeCard:
    """A node's card from a Flower record. Raises ValueError if no node of ours would send it."""
    text = str(record.get("json", ""))
    if len(text) > LONGEST_CARD:
        raise ValueError(f"its card has {len(text)} characters; it takes at most {LONGEST_CARD}")
    card = NodeCard.model_validate_json(text)
    if not re.fullmatch(NAME_PATTERN, card.name):
        raise ValueError(f"its name is {card.name!r}; it {IN_WORDS[NAME_PATTERN]}")
    if not all(0 <= number < LARGEST for number in (card.examples, card.classes, *card.input_shape)):
        raise ValueError(f"the card of {card.name} has numbers below 0 or from {LARGEST} on")
    return card


def refusal(message: Message, error: BaseException) -> Message:
    """The reply to a message that could not be carried out.

    Our own errors are sent with their sentence, which never quotes data. Of any other error, and of one of
    ours that another caused, only its class and where it was raised leave the node: its text might hold a
    patient's name.
    """
    own = isinstance(error, SpecfedError) and error.__cause__ is None
    reason = f"{type(error).__name__}: {error}" if own else _location(error)
    return Message(Error(ERROR_CODE, reason), reply_to=message)


def _location(error: BaseException) -> str:
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    return f"{type(error).__name__} at {' < '.join(reversed(frames[-4:]))} (its text stays in the node's log)"


__all__ = [
    "ACCEPTED",
    "ARRAYS",
    "BUFFERS",
    "CARD",
    "CONFIG",
    "ERA",
    "HELLO",
    "LEARNING_RATE",
    "MEMORY_LOST",
    "METRICS",
    "REASON",
    "REFUSED",
    "REPORT",
    "RUN",
    "SLOT",
    "UPDATE",
    "ArrayRecord",
    "ConfigRecord",
    "Context",
    "Message",
    "MetricRecord",
    "RecordDict",
    "as_flower",
    "card_record",
    "pack",
    "read_card",
    "refusal",
    "unpack",
]
