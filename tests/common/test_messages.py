"""The wire: tensors exactly, cards, and what a refusal lets out of a node."""

import io
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array
from safetensors.numpy import save

from common.errors import ConfigError, DataError, SpecfedError
from common.ledger import NodeCard
from common.messages import (
    ERROR_CODE,
    PACKED,
    ArrayRecord,
    ConfigRecord,
    Message,
    RecordDict,
    as_flower,
    card_record,
    pack,
    read_card,
    refusal,
    unpack,
)
from specfed.local_grid import own_identity
from tests.common.hazards import BROKEN_TENSORS, Bomb

CARD = NodeCard(
    name="site-1",
    examples=120,
    classes=10,
    input_shape=(1, 8, 8),
    fingerprint="ab",
    device="",
    versions={"torch": "2.14.1"},
)
SECRET = "patient Jane Doe"


@pytest.fixture(autouse=True)
def identity() -> Iterator[None]:
    with own_identity():
        yield


# Tensors


def test_tensors_travel_exactly() -> None:
    sent = {
        "w": np.array([[1e-45, -0.0], [np.nan, -np.inf]], dtype=np.float32),
        "double": np.array([np.pi]),
        "half": np.array([0.1], dtype=np.float16),
        "counter": np.array(2**53 + 1, dtype=np.int64),
        "scalar": np.array(0.5, dtype=np.float32),
        "empty": np.zeros((0, 3), dtype=np.float32),
        "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "every second": np.arange(6)[::2],
    }
    got = unpack(pack(sent))
    assert list(got) == list(sent)
    for name, x in sent.items():
        assert (got[name].dtype, got[name].shape) == (x.dtype, x.shape), name
        assert got[name].tobytes() == x.tobytes(), name


@pytest.mark.parametrize("dtype", ["?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3, 1)])
def test_any_numbers_travel_in_one_piece(dtype: str, shape: tuple[int, ...]) -> None:
    x = np.ones(shape, dtype=dtype)
    record = pack({"w": x, "a": x, " 1 ": x})
    assert list(record) == [PACKED] and record[PACKED].stype == "safetensors"
    for name, got in unpack(record).items():
        assert (name in {"w", "a", " 1 "}) and (got.dtype, got.shape) == (x.dtype, x.shape)
        assert got.tobytes() == x.tobytes()
    plain = as_flower({"w": x})
    assert plain["w"].data == ArrayRecord({"w": Array(x)})["w"].data  # as Flower itself would write it
    assert np.array_equal(unpack(plain)["w"], x)


def test_a_thousand_tensors_keep_their_order() -> None:
    names = [f"layer {1001 - i}.weight" for i in range(1001)]
    assert list(unpack(pack({name: np.array(i) for i, name in enumerate(names)}))) == names


def test_a_tensor_may_be_called_as_the_whole_is() -> None:
    for make in (pack, as_flower):
        assert unpack(make({PACKED: np.ones(2)}))[PACKED].tolist() == [1, 1]


def test_no_tensors_travel_too() -> None:
    assert unpack(pack({})) == {}


def test_what_arrives_is_what_was_sent_then() -> None:
    w = np.zeros(2)
    record = pack({"w": w})
    w += 1
    assert unpack(record)["w"].tolist() == [0, 0]
    unpack(record)["w"] += 1  # may be written to


def saved(x: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, x, allow_pickle=True)
    return file.getvalue()


def archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, w=np.ones(2))
    return file.getvalue()


def npy(header: str, body: bytes = b"") -> bytes:
    line = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + body


def floats(shape: str) -> str:
    return f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"


TAMPERED = {
    "nothing": b"",
    "garbage": b"garbage",
    "pickle": pickle.dumps({"w": 1}),
    "objects": saved(np.array([{}, None], dtype=object)),
    "archive": archive(),
    "cut off": saved(np.ones(9))[:-1],
    "petabytes": npy(floats("(1000000000000000,)")),
    "more than a machine word": npy(floats("(1" + "0" * 30 + ",)")),
    "negative": npy(floats("(-5,)"), bytes(20)),
    "true for a number": npy(floats("(True,)"), bytes(4)),
    "no type": npy("{'descr': 'nonsense', 'fortran_order': False, 'shape': (1,), }", bytes(4)),
    "parentheses": npy("(" * 9000),
    "minus signs": npy("-" * 9000 + "1"),
    "unknown version": b"\x93NUMPY\x09\x00abc",
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_bytes_that_are_no_plain_array_are_a_value_error(kind: str) -> None:
    array = Array(dtype="float32", shape=(2,), stype="numpy.ndarray", data=TAMPERED[kind])
    with pytest.raises(ValueError, match=r'tensor "w" is no plain array: .') as refused:
        unpack(ArrayRecord({"w": array}))
    assert refused.value.__cause__ is None


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    for data in (pickle.dumps(Bomb(trace)), saved(np.array([Bomb(trace)], dtype=object))):
        with pytest.raises(ValueError, match="no plain array"):
            unpack(ArrayRecord({"w": Array("float32", (2,), "numpy.ndarray", data)}))
    assert not trace.exists()


@pytest.mark.parametrize("kind", BROKEN_TENSORS)
def test_bytes_that_are_no_safetensors_are_a_value_error(kind: str) -> None:
    array = Array(dtype="uint8", shape=(2,), stype="safetensors", data=BROKEN_TENSORS[kind])
    with pytest.raises(ValueError, match=r"the tensors are no safetensors: .") as refused:
        unpack(ArrayRecord({PACKED: array}))
    assert refused.value.__cause__ is None


def test_what_comes_beside_the_whole_is_a_value_error() -> None:
    record = pack({"w": np.ones(2)})
    record["v"] = Array(np.ones(2))
    with pytest.raises(ValueError, match="the record has 2 arrays"):
        unpack(record)


def test_a_whole_without_numbers_before_its_names_has_none_of_the_models() -> None:
    array = Array("uint8", (1,), "safetensors", save({"w": np.ones(2)}))
    assert list(unpack(ArrayRecord({PACKED: array}))) == [""]


@pytest.mark.parametrize("stype", ["pickle", "torch.Tensor", ""])
def test_another_serialisation_is_a_value_error(stype: str) -> None:
    with pytest.raises(ValueError, match='tensor "w" is no plain array'):
        unpack(ArrayRecord({"w": Array("float32", (2,), stype, saved(np.ones(2, np.float32)))}))


def test_a_false_label_does_not_change_what_was_sent() -> None:
    array = Array("float64", (1, 2), "numpy.ndarray", saved(np.ones(3, np.int64)))
    got = unpack(ArrayRecord({"w": array}))["w"]
    assert (got.dtype, got.shape) == (np.int64, (3,))


# Cards


def test_a_card_travels_whole() -> None:
    assert read_card(card_record(CARD)) == CARD


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"name": "site-1"}'])
def test_what_is_no_card_is_a_value_error(content: str) -> None:
    with pytest.raises(ValueError, match="NodeCard"):
        read_card(ConfigRecord({"json": content}))
    with pytest.raises(ValueError, match="NodeCard"):
        read_card(ConfigRecord())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": ""}, "its name is ''; it takes 1 to 60 letters"),
        ({"name": "a/b"}, "its name is 'a/b'"),
        ({"name": "site-1\n"}, "its name is"),
        ({"name": "9" * 61}, "its name is '999"),
        ({"examples": -5}, "the card of site-1 has numbers below 0"),
        ({"input_shape": (3, 10**30)}, "the card of site-1 has numbers below 0 or from"),
        ({"versions": {f"k{i}": "v" * 50 for i in range(1000)}}, "characters; it takes at most 10000"),
        ({"device": "d" * 20_000}, "characters; it takes at most 10000"),
    ],
)
def test_a_card_that_no_node_of_ours_sends_is_a_value_error(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read_card(card_record(CARD.model_copy(update={"name": "site-1", **change})))


# Refusals


def reason_for(error: Exception) -> str:
    message = Message(RecordDict(), 2, "train")
    message.metadata.__dict__["_message_id"] = "m-1"  # as Flower gives it on the way
    reply = refusal(message, error)
    assert not reply.has_content()
    assert reply.metadata.reply_to_message_id == "m-1"
    assert reply.error.code == ERROR_CODE
    return reply.error.reason


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        if cause is None:
            raise error
        try:
            raise cause
        except Exception as failure:
            raise error from failure
    except Exception as caught:
        return caught


@pytest.mark.parametrize("kind", [SpecfedError, ConfigError, DataError])
def test_an_error_of_ours_keeps_its_sentence(kind: type[SpecfedError]) -> None:
    assert reason_for(raised(kind("the folder is empty"))) == f"{kind.__name__}: the folder is empty"


def test_an_error_of_ours_that_hid_another_keeps_its_sentence() -> None:
    def hidden() -> None:
        try:
            int(SECRET)
        except ValueError:
            raise DataError("no row numbers in rows.npy") from None

    with pytest.raises(DataError) as caught:
        hidden()
    assert reason_for(caught.value) == "DataError: no row numbers in rows.npy"


@pytest.mark.parametrize(
    "error",
    [
        raised(ValueError(f"could not read {SECRET}")),
        raised(KeyError(SECRET)),
        raised(OSError(2, "No such file", SECRET)),
        raised(DataError(f"own:f failed with ValueError: {SECRET}"), cause=ValueError(SECRET)),
        raised(RuntimeError(SECRET), cause=DataError(SECRET)),
        ValueError(SECRET),  # never raised
    ],
    ids=repr,
)
def test_the_text_of_any_other_error_stays_on_the_node(error: Exception) -> None:
    reason = reason_for(error)
    assert SECRET not in reason and "Jane" not in reason
    assert reason.startswith(f"{type(error).__name__} at ")
    assert reason.endswith("(its text stays in the node's log)")


def test_the_reason_tells_where_without_the_path() -> None:
    def deep() -> None:
        raise ValueError(SECRET)

    with pytest.raises(ValueError, match=SECRET) as caught:
        deep()
    reason = reason_for(caught.value)
    assert f"{Path(__file__).name}:" in reason and " deep" in reason
    assert str(Path(__file__).parent) not in reason
