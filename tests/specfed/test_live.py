"""The live view as text, and the two ways in which records reach it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.ledger import (
    LOG_MARK,
    ClientRecord,
    End,
    Flag,
    Header,
    Joined,
    LedgerWriter,
    Record,
    RoundRecord,
    Suspect,
)
from specfed.live import duration, follow, record_of, records_in, short, tell
from tests.records import MODEL, node


def header(*names: str, **config: Any) -> Header:
    defaults = {"weighting": "spectralfuse", "contribution": "weight", "filter": "fft", "filter-ratio": 0.05}
    return Header(
        run_id="r1",
        folder="/runs/r1",
        time="2026-12-01T00:00:00+00:00",
        config={**defaults, **{key.replace("_", "-"): value for key, value in config.items()}},
        versions={},
        model=MODEL,
        nodes=tuple(node(name) for name in names),
    )


def accepted(round_: int, client: str, weight: float, score: float | None) -> ClientRecord:
    std = None if score is None else 0.02
    return ClientRecord(
        round=round_, client=client, status="accepted", weight=weight, score=score, score_std=std
    )


def round_(number: int, **changes: Any) -> RoundRecord:
    values: dict[str, Any] = {"sampled": 2, "accepted": 2, "moved": True, "accuracy": 0.5, "loss": 1.25}
    return RoundRecord(round=number, rounds=3, seconds=20.0, elapsed=20.0 * number, **(values | changes))


def lines(*records: Record, width: int = 100) -> list[str]:
    return list(tell(records, width))


def test_a_run_from_its_first_line_to_its_last() -> None:
    flag = Flag(test="robust-z", value=-4.1, threshold=-3.5, text="lowest score")
    shown = lines(
        header("site-1", "site-2"),
        accepted(1, "site-1", 0.5, 0.55),
        accepted(1, "site-2", 0.5, 0.45).model_copy(update={"flags": (flag,)}),
        round_(1),
        accepted(2, "site-1", 1.0, 0.6),
        ClientRecord(round=2, client="site-2", status="quarantined", reason="NaN in fc2.weight"),
        round_(2, accepted=1, accuracy=0.931, loss=0.2412),
        accepted(3, "site-1", 0.75, 0.625),
        accepted(3, "site-2", 0.25, -0.125),
        round_(3, accuracy=None, loss=None),
        End(
            status="completed-degraded",
            rounds=3,
            seconds=71.2,
            accuracy=0.931,
            loss=0.2412,
            suspects=(Suspect(client="site-2", text="looks like a free-rider"),),
        ),
    )
    assert shown == [
        "run     r1 · training examples: site-1 100, site-2 100 · 10 classes",
        'model   cnn5, 0.06 M parameters · head "fc2.weight" (10 x 64) · FFT filter r=0.05 on 6 of 10 tensors',
        "weights SpectralFuse (the table shows weight/score)",
        "",
        " round accuracy   loss replies  site-1  site-2    left",
        "   1/3   50.0 %  1.250     2/2 .50/.55 .50/.45    40 s",
        "       site-2 quarantined: NaN in fc2.weight",
        "   2/3   93.1 %  0.241     1/2 1.0/.60       -    20 s",
        "   3/3        -      -     2/2 .75/.62 .25/-.12       -",
        "",
        "completed-degraded in 1m 11s · accuracy 93.1 % · every number: /runs/r1/report.html",
        "contribution   site-1 .62 ± .02    site-2 -.12 ± .02",
        "advisory       site-2: looks like a free-rider",
    ]


def test_without_scores_the_table_shows_weights_alone() -> None:
    shown = lines(
        header("a", "b", weighting="examples", filter="none"), accepted(1, "a", 0.75, None), round_(1)
    )
    assert "gradients unfiltered" in shown[1]
    assert shown[2:] == [
        "weights by number of examples",
        "",
        " round accuracy   loss replies   a   b    left",
        "   1/3   50.0 %  1.250     2/2 .75   -    40 s",
    ]


@pytest.mark.parametrize("weighting", ["SpectralFuse", "ShapFed", "CGSV", "FedLAW"])
def test_scores_that_are_only_observed_are_said_so(weighting: str) -> None:
    keys = {"weighting": weighting.lower(), "contribution": "observe", "base_weighting": "uniform"}
    assert lines(header("a", **keys))[2] == (
        f"weights the same for all nodes; {weighting} only observed (the table shows weight/score)"
    )


def test_the_table_shows_as_many_nodes_as_fit() -> None:
    names = [f"site-{i}" for i in range(1, 10)]
    for width in (30, 38, 60, 80):
        heading = lines(header(*names), width=width)[4]
        assert len(heading) <= max(width, 38)
        assert heading.count("site-") == (width - 38) // 8 if width > 38 else "site-" not in heading


def test_a_round_without_effect_says_why() -> None:
    shown = lines(header("a", "b"), round_(1, moved=False, accepted=0, reason="1 usable reply, 2 needed"))
    assert shown[-1] == "       the model stays as it was: 1 usable reply, 2 needed"


def test_nodes_that_come_later() -> None:
    shown = lines(
        header("a"),
        Joined(round=2, node=node("late", 1234)),
        Joined(round=2, refused='two nodes are called "a"'),
    )
    assert shown[-2:] == [
        "       late joined with 1,234 examples",
        '       turned away: two nodes are called "a"',
    ]


def test_a_resumed_run_begins_in_the_middle() -> None:
    shown = lines(accepted(2, "b", 0.5, 0.5), accepted(2, "a", 0.5, 0.5), round_(2))
    assert shown[0].split() == ["round", "accuracy", "loss", "replies", "a", "b", "left"]
    assert len(shown) == 2


def test_a_failed_run_gives_its_reason() -> None:
    end = End(status="failed", reason="no nodes came", error="RunFailed", rounds=0, seconds=120.0)
    assert lines(end) == ["", "failed after 0 rounds and 2m 00s", "reason         no nodes came"]


def test_many_scores_take_several_lines() -> None:
    names = [f"site-{i}" for i in range(1, 6)]
    end = End(status="completed", rounds=1, seconds=1.0)
    shown = lines(header(*names), *(accepted(1, n, 0.2, 0.2) for n in names), round_(1), end, width=60)
    assert shown[-4:-1] == [
        "contribution   site-1 .20 ± .02   site-2 .20 ± .02",
        "               site-3 .20 ± .02   site-4 .20 ± .02",
        "               site-5 .20 ± .02",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.2, ".20"),
        (-0.05, "-.05"),
        (1.304, "1.3"),
        (10.5, "10.5"),
        (0.999, "1.0"),
        (0.0, ".00"),
    ],
)
def test_short_numbers(value: float | None, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1m 00s"), (3725, "1h 02m")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_follow_waits_for_whole_lines(tmp_path: Path) -> None:
    """The file comes late and a line comes in two pieces: each record is seen once, and whole."""
    path = tmp_path / "ledger.jsonl"
    first, second = round_(1).model_dump_json(by_alias=True), round_(2).model_dump_json(by_alias=True)
    pieces: Iterator[str] = iter(["", first + "\n" + second[:20], second[20:], "\n"])

    def finished() -> bool:
        piece = next(pieces, None)
        if piece:
            with path.open("a", encoding="utf-8") as file:
                file.write(piece)
        return piece is None

    assert list(follow(path, finished)) == [round_(1), round_(2)]


def test_follow_ends_at_the_end_record(tmp_path: Path) -> None:
    end = End(status="completed", rounds=1, seconds=1.0)
    with LedgerWriter(tmp_path / "ledger.jsonl") as ledger:
        ledger.write(round_(1))
        ledger.write(end)
    assert list(follow(tmp_path / "ledger.jsonl", lambda: False)) == [round_(1), end]


def test_follow_of_a_run_that_writes_nothing_ends_with_it(tmp_path: Path) -> None:
    assert list(follow(tmp_path / "ledger.jsonl", lambda: True)) == []


def test_a_line_that_is_no_record_does_not_end_the_watch(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"kind":"of a later version"}\n\xff\n' + round_(1).model_dump_json().encode() + b"\n")
    assert list(follow(path, lambda: True)) == [round_(1)]


FORGED = f"{LOG_MARK}{End(status='completed', rounds=9, seconds=1, accuracy=0.99).model_dump_json()}"


@pytest.mark.parametrize(
    "line",
    [
        f"\x1b[93mWARNING \x1b[0m:   node refused: {FORGED}",
        f"INFO :      node refused: INFO :      {FORGED}",
        f"\x1b[92mINFO \x1b[0m:      round 1, site-3: error. {FORGED}",
        FORGED,
        f"INFO :      {LOG_MARK}nonsense",
        f"INFO :      {LOG_MARK}",
    ],
)
def test_what_a_line_only_quotes_is_no_record(line: str) -> None:
    log = [f"{line}\n", f"INFO :      {LOG_MARK}{round_(1).model_dump_json()}\n"]
    assert list(records_in(log)) == [round_(1)]


def test_a_record_behind_something_without_a_line_end() -> None:
    """A progress bar of the server's own data, say; the colour tells where Flower's message begins."""
    line = f"\r 100%\x1b[92mINFO \x1b[0m:      {LOG_MARK}{round_(1).model_dump_json()}\n"
    assert list(records_in([line])) == [round_(1)]


def test_a_message_is_a_record_from_its_first_character_on() -> None:
    line = f"{LOG_MARK}{round_(1).model_dump_json(by_alias=True)}"
    assert record_of(line) == round_(1)
    assert record_of(f"node refused: {line}") is record_of(f"{LOG_MARK}nonsense") is record_of("") is None


def test_records_in_a_log() -> None:
    line = round_(1).model_dump_json(by_alias=True)
    log = ["INFO : starting\n", f"\x1b[92mINFO \x1b[0m:      {LOG_MARK}{line}\n", "\n", "done"]
    assert list(records_in(log)) == [round_(1)]
