"""The ledger: every record there and back, torn and broken lines, rewinding, a killed writer."""

import json
import math
from pathlib import Path

import pytest

from common.errors import DataError
from common.ledger import (
    ClientRecord,
    DriftRecord,
    End,
    Flag,
    Header,
    Joined,
    LayerDrift,
    LedgerWriter,
    ModelCard,
    NodeCard,
    Record,
    RoundRecord,
    Suspect,
    parse,
    read,
    rewind,
)
from tests import disks
from tests.common.hazards import last_word_when_killed

CARD = NodeCard(
    name="site-1",
    examples=120,
    classes=10,
    input_shape=(1, 8, 8),
    fingerprint="ab12",
    device="cuda:1",
    versions={"torch": "2.14.1"},
)
HEADER = Header(
    run_id="r-1",
    folder="runs/r-1",
    time="2026-12-01T10:00:00+00:00",
    config={"rounds": 3, "lr-decay": 1.0, "tensorboard": True, "model": "cnn5", "run-name": ""},
    versions={"flwr": "1.39.0"},
    model=ModelCard(
        name="cnn5", parameters=9, tensors=4, filtered_tensors=2, head="fc.weight", head_shape=(10, 64)
    ),
    nodes=(CARD, CARD),
    eval_fingerprint="cd34",
)
END = End(
    status="completed-degraded",
    reason="one node was silent",
    error="RunFailed",
    rounds=3,
    seconds=7.5,
    accuracy=0.9,
    loss=0.4,
    suspects=(Suspect(client="site-5", text="looks like a free-rider"),),
)


def client(round_: int, name: str = "site-1") -> ClientRecord:
    return ClientRecord(
        round=round_,
        client=name,
        status="accepted",
        examples=120,
        steps=4,
        train_loss=0.5,
        loss_before=0.7,
        accuracy_before=0.5,
        seconds=1.25,
        update_norm=0.1,
        signals={"entropy": 0.3, "alignment": None},
        score=0.25,
        score_std=0.02,
        weight=0.5,
        flags=(Flag(test="robust-z", value=-4.1, threshold=-3.5, text="far below “the others”\n"),),
    )


def round_record(round_: int) -> RoundRecord:
    return RoundRecord(
        round=round_,
        rounds=3,
        sampled=2,
        accepted=1,
        moved=False,
        reason="no quorum",
        accuracy=0.5,
        loss=1.5,
        evaluated_on="nodes",
        noise={"entropy": 0.1},
        seconds=2.0,
        elapsed=4.0,
    )


DRIFT = DriftRecord(
    round=2,
    source="gradients",
    filtered=False,
    clients=3,
    dist=(0.5,) * 10,
    std=(0.25,) * 10,
    energy=(0.1,) * 10,
    layers=(
        LayerDrift(name="fc.weight", absolute=1.0, relative=0.5, cosine=-0.25, filtered_cosine=0.5),
        LayerDrift(name="fc.bias"),
    ),
    left_out=("fc.bias",),
    cka=0.75,
    seconds=0.5,
)
RECORDS: list[Record] = [
    HEADER,
    Joined(round=1, node=CARD),
    client(1),
    ClientRecord(round=1, client="site-2", status="missing", reason="no reply in time"),
    round_record(1),
    Joined(round=2, refused='a second "site-1", zwei Ärzte'),
    client(2).model_copy(update={"energy_removed": (0.5, 0.25), "band_energies": (1.0,) * 10}),
    DRIFT,
    round_record(2),
    client(3),
    round_record(3),
    END,
]


def write(path: Path, records: list[Record]) -> None:
    with LedgerWriter(path) as ledger:
        for record in records:
            ledger.write(record)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    write(path, RECORDS)
    return path


# There and back


def test_every_record_comes_back_as_it_was(path: Path) -> None:
    assert list(read(path)) == RECORDS
    assert [type(record) for record in read(path)] == [type(record) for record in RECORDS]


def test_a_record_is_one_line_of_json_with_kebab_case_keys(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(RECORDS)
    first = json.loads(lines[0])
    assert first["format"] == 1 and first["run-id"] == "r-1" and first["model"]["head-shape"] == [10, 64]
    assert [json.loads(line)["kind"] for line in lines[:3]] == ["header", "joined", "client"]


def test_the_configuration_keeps_its_types(path: Path) -> None:
    header = next(read(path))
    assert isinstance(header, Header)
    kinds = {key: type(value) for key, value in header.config.items()}
    assert kinds == {"rounds": int, "lr-decay": float, "tensorboard": bool, "model": str, "run-name": str}


def test_what_is_not_finite_becomes_null() -> None:
    record = client(1).model_copy(
        update={"train_loss": math.nan, "loss_before": math.inf, "signals": {"entropy": -math.inf}}
    )
    line = record.model_dump_json(by_alias=True)
    assert {"train-loss": None, "loss-before": None, "signals": {"entropy": None}}.items() <= json.loads(
        line
    ).items()
    back = parse(line)
    assert isinstance(back, ClientRecord)
    assert (back.train_loss, back.loss_before, back.signals) == (None, None, {"entropy": None})
    noise = round_record(1).model_copy(update={"noise": {"entropy": math.nan}})
    assert parse(noise.model_dump_json(by_alias=True)) == round_record(1).model_copy(
        update={"noise": {"entropy": None}}
    )


def test_a_later_versions_extra_keys_are_passed_over() -> None:
    line = json.dumps({**json.loads(END.model_dump_json(by_alias=True)), "carbon": 3})
    assert parse(line) == END


# Torn and broken lines


@pytest.mark.parametrize(
    "torn", [b"{", b'{"kind":"end"', b"\xc3", b"garbage", '{"kind":"joined","refused":"Ä'.encode()[:-1]]
)
def test_a_torn_last_line_is_no_line_yet_and_is_cut_before_the_next(path: Path, torn: bytes) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert list(read(path)) == RECORDS
    write(path, [END])
    assert path.read_bytes().startswith(whole)
    assert list(read(path)) == [*RECORDS, END]


def test_the_newline_makes_the_line(path: Path) -> None:
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    assert list(read(path)) == RECORDS[:-1]


def test_a_ledger_of_one_torn_line_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"kind":"hea')
    assert list(read(path)) == []
    write(path, [HEADER])
    assert list(read(path)) == [HEADER]


@pytest.mark.parametrize(
    "broken", [b"{", b"", b"[]", b'{"kind":"unheard-of"}', b'{"kind":"end"}', b"\xff\xfe"]
)
def test_a_full_line_that_is_no_record_is_named(path: Path, broken: bytes) -> None:
    lines = path.read_bytes().split(b"\n")
    lines[3] = broken
    path.write_bytes(b"\n".join(lines))
    records = read(path)
    assert [next(records) for _ in range(3)] == RECORDS[:3]
    with pytest.raises(DataError, match="line 4: not a ledger line") as refused:
        next(records)
    assert str(refused.value).startswith(f"{path}, line 4: ")


def test_a_missing_ledger_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no ledger at .*ledger\.jsonl: No such file"):
        list(read(tmp_path / "ledger.jsonl"))


# Appending and rewinding


def test_a_second_writer_goes_on_at_the_end(path: Path) -> None:
    write(path, [client(4)])
    assert list(read(path)) == [*RECORDS, client(4)]


def test_a_record_can_be_read_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with LedgerWriter(path) as ledger:
        ledger.write(HEADER)
        assert list(read(path)) == [HEADER]
        ledger.write(client(1))
        assert list(read(path)) == [HEADER, client(1)]


@pytest.mark.parametrize(("round_", "kept"), [(0, 1), (1, 5), (2, 9), (3, 11), (9, 11)])
def test_rewinding_drops_later_rounds_and_the_end(path: Path, round_: int, kept: int) -> None:
    rewind(path, round_, HEADER.config)
    assert list(read(path)) == RECORDS[:kept]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_rewinding_drops_a_torn_line_and_refuses_a_broken_one(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind":')
    rewind(path, 3, HEADER.config)
    assert list(read(path)) == RECORDS[:-1]
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(DataError, match="line 1"):
        rewind(path, 3, HEADER.config)
    assert path.read_bytes() == b"{}\n" + whole


def test_a_killed_server_leaves_every_full_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    code = (
        "import itertools, pathlib, sys\n"
        "from common.ledger import Joined, LedgerWriter\n"
        "ledger = LedgerWriter(pathlib.Path(sys.argv[1]))\n"
        "for n in itertools.count():\n"
        "    ledger.write(Joined(round=n, refused='ä' * 3000))\n"
        "    print(n, flush=True)\n"
    )
    told = last_word_when_killed(code, path, enough=20)
    rounds = [record.round for record in read(path) if isinstance(record, Joined)]
    assert rounds == list(range(len(rounds)))
    assert len(rounds) > told  # what was reported as written is there
    write(path, [END])
    assert list(read(path))[-1] == END


@pytest.mark.parametrize("way", disks.WAYS)
def test_what_does_not_fit_on_the_disk_leaves_no_half_line(tmp_path: Path, way: str) -> None:
    program = (
        "import sys; from pathlib import Path; from common.ledger import Joined, LedgerWriter\n"
        "path = Path(sys.argv[1]) / 'ledger.jsonl'\n"
        "with LedgerWriter(path) as ledger:\n"
        "    for length in (10, 100_000, 20):\n"
        "        try: ledger.write(Joined(round=1, refused='x' * length))\n"
        "        except OSError as error: print(type(error).__name__)\n"
        "print([len(line) for line in path.read_text().splitlines()], path.read_text()[-1:] == '\\n')\n"
    )
    done = disks.run(way, 64, tmp_path / "disk", program)
    base = len(Joined(round=1, refused="").model_dump_json(by_alias=True))
    assert done.stdout.split("\n")[:2] == ["OSError", f"[{base + 10}, {base + 20}] True"], done.stderr
