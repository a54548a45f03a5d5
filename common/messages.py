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
buffers stay integers. Tensors travel as Flower arrays: no pickle, and nothing that names a class.
"""

from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from math import prod

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from common.errors import SpecfedError
from common.ledger import NodeCard
from common.params import Arrays

ARRAYS, BUFFERS, CONFIG, UPDATE, METRICS, CARD = "arrays", "buffers", "config", "update", "metrics", "card"
SLOT, REPORT = "slot.", "report."  # before a slot's name
ERA, ACCEPTED, LEARNING_RATE, RUN = "era", "accepted", "learning-rate", "run"  # of the config record
MEMORY_LOST = "memory-lost"  # metric of a node that does not have what its last accepted reply left
HELLO = "query.hello"
_NPY = "numpy.ndarray"  # how Flower calls numpy's file format
_NUMBERS = {str(np.dtype(code)) for code in "?bBhHiIqQefd"}
ERROR_CODE = 100  # ours; Flower's own are below


def pack(arrays: Mapping[str, NDArray[np.generic]]) -> ArrayRecord:
    """Named arrays as a Flower record. Numbers only."""
    return ArrayRecord({name: _packed(np.asarray(value, order="C")) for name, value in arrays.items()})


def unpack(record: ArrayRecord) -> Arrays:
    """A Flower record as named arrays, with the shapes and types that were really sent.

    Raises ValueError for bytes that are not a plain numpy array.
    """
    return {name: _plain(name, array) for name, array in record.items()}


def _packed(value: NDArray[np.generic]) -> Array:
    dtype = str(value.dtype)
    return Array(dtype, value.shape, _NPY, _npy_header(dtype, value.shape) + value.tobytes())


@lru_cache(maxsize=4096)
def _npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """What stands before the bytes of an array of numbers in numpy's file format.

    Writing and reading it takes numpy longer than a small tensor's bytes do.
    """
    out = BytesIO()
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
    return out.getvalue()


def _quick(array: Array) -> NDArray[np.generic] | None:
    """The array, if it is written just as ``pack`` does it."""
    if array.dtype not in _NUMBERS or array.stype != _NPY:
        return None
    dtype, shape = np.dtype(array.dtype), tuple(int(n) for n in array.shape)  # not True, which equals 1
    header = _npy_header(array.dtype, shape)
    if len(array.data) != len(header) + prod(shape) * dtype.itemsize or not array.data.startswith(header):
        return None
    return np.frombuffer(array.data, dtype, offset=len(header)).reshape(shape).copy()


def _plain(name: str, array: Array) -> NDArray[np.generic]:
    try:
        quick = _quick(array)
        value = array.numpy() if quick is None else quick
    except Exception as error:  # bytes that were made to break numpy's reader do so in many ways
        raise ValueError(f'tensor "{name}" is no plain array: {type(error).__name__}: {error}') from None
    if not isinstance(value, np.ndarray):  # numpy reads whole archives as well
        raise ValueError(f'tensor "{name}" is no plain array: {type(value).__name__}')
    return value


def card_record(card: NodeCard) -> ConfigRecord:
    """A node's card as a Flower record."""
    return ConfigRecord({"json": card.model_dump_json(by_alias=True)})


def read_card(record: ConfigRecord) -> NodeCard:
    """A node's card from a Flower record. Raises ValueError if it is not one."""
    return NodeCard.model_validate_json(str(record["json"]))


def refusal(message: Message, error: Exception) -> Message:
    """The reply to a message that could not be carried out.

    Our own errors are sent with their sentence, which never quotes data. Of any other error, and of one of
    ours that another caused, only its class and where it was raised leave the node: its text might hold a
    patient's name.
    """
    own = isinstance(error, SpecfedError) and error.__cause__ is None
    reason = f"{type(error).__name__}: {error}" if own else _location(error)
    return Message(Error(ERROR_CODE, reason), reply_to=message)


def _location(error: Exception) -> str:
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
    "card_record",
    "pack",
    "read_card",
    "refusal",
    "unpack",
]
