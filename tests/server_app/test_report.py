"""The report: numbers computed by hand, foreign text escaped, and every ledger that can be left behind."""

import csv
import json
import re
import shutil
import struct
import subprocess
import zlib
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from common.config import RunConfig
from common.errors import DataError
from common.ledger import (
    ClientRecord,
    DriftRecord,
    End,
    Flag,
    Header,
    Joined,
    LedgerWriter,
    NodeCard,
    Record,
    RoundRecord,
    Suspect,
)
from server_app.contribution import contribution_table
from server_app.report import write_report
from server_app.report_parts import capped, duration, ranges
from server_app.report_style import STYLE
from server_app.run_view import Problem, flagged, problems, view
from tests.records import MODEL, node

EVIL = "<script>alert(1)</script>\"'&"
VOID = {"meta", "br"}


def header(*names: str, **config: str | int | float | bool) -> Header:
    return Header(
        run_id="2026-12-01-demo-7f3a",
        folder="runs/2026-12-01-demo-7f3a",
        time="2026-12-01T14:03:11+00:00",
        config=RunConfig(rounds=3).as_dict() | config,
        versions={"specfed": "0.1.0"},
        model=MODEL,
        nodes=tuple(node(name) for name in names),
    )


def accepted(number: int, client: str, score: float | None, weight: float, **more: object) -> ClientRecord:
    values: dict[str, object] = {
        "round": number,
        "client": client,
        "status": "accepted",
        "examples": 50,
        "score": score,
        "weight": weight,
        "signals": {"entropy": 0.5 + number / 10, "alignment": None},
    }
    return ClientRecord.model_validate(values | more)


def done(number: int, accuracy: float | None = None, **more: object) -> RoundRecord:
    values: dict[str, object] = {
        "round": number,
        "rounds": 3,
        "sampled": 2,
        "accepted": 2,
        "moved": True,
        "accuracy": accuracy,
        "loss": None if accuracy is None else 2 * accuracy,
        "evaluated_on": "none" if accuracy is None else "nodes",
        "seconds": 5.0,
        "elapsed": 5.0 * number,
    }
    return RoundRecord.model_validate(values | more)


FLAG = Flag(test="robust-z", value=-4.5, threshold=-3.5, text="lowest score of all")
RECORDS: tuple[Record, ...] = (
    header("a", "b", "never"),
    accepted(1, "a", 0.5, 0.5, score_std=0.1),
    accepted(1, "b", 0.5, 0.5, score_std=0.1),
    done(1, 0.25, noise={"entropy": 0.1, "alignment": 0.2}),
    accepted(2, "a", 0.625, 0.75, score_std=0.05),
    accepted(2, "b", 0.375, 0.25, score_std=0.05, flags=(FLAG,)),
    done(2, 0.5, noise={"entropy": 0.05, "alignment": 0.2}),
    accepted(3, "a", 0.75, 1.0, score_std=0.025),
    ClientRecord(round=3, client="b", status="quarantined", reason="fc2.weight holds NaN"),
    done(3, 0.75, accepted=1),
    End(
        status="completed-degraded",
        reason="1 of 3 rounds lost a reply",
        rounds=3,
        seconds=71,
        accuracy=0.75,
        loss=1.5,
        suspects=(Suspect(client="b", text="lowest score in 2 of 3 rounds"),),
    ),
)


def report(folder: Path, records: Iterable[Record], torn: str = "") -> str:
    with LedgerWriter(folder / "ledger.jsonl") as ledger:
        for record in records:
            ledger.write(record)
    with (folder / "ledger.jsonl").open("a") as file:
        file.write(torn)
    path = write_report(folder)
    assert path == folder / "report.html"
    text = path.read_text(encoding="utf-8")
    check_page(text)
    return text


class Checker(HTMLParser):
    """Sees to it that every element is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        assert not any(name.startswith("on") or name in ("href", "src") for name, _ in attrs)
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_page(text: str) -> None:
    """Well-formed, unique ids, no script, nothing to fetch, no value of Python's that slipped through."""
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert len(checker.ids) == len(set(checker.ids))
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    assert not re.search(r"\b(None|nan|inf)\b", text)


def words(text: str) -> str:
    """What a reader sees, with single spaces."""
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL))


def rows(text: str, section: str) -> list[list[str]]:
    """The cells of the table in a section, without its head."""
    table = re.search(rf"<h2>{section}</h2>.*?<tbody>(.*?)</tbody>", text, flags=re.DOTALL)
    assert table
    return [
        [words(cell).strip() for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall(r"<tr>(.*?)</tr>", table[1])
    ]


def spreadsheet(folder: Path) -> list[dict[str, str]]:
    with (folder / "report.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# -- what stands in it -------------------------------------------------------------------------------


def test_the_contribution_table_holds_hand_computed_values() -> None:
    a, b, never = contribution_table(RECORDS)
    # The last half of rounds 1, 2, 3 is rounds 2 and 3: (0.75 + 1.0) / 2.
    assert (a.client, a.score, a.std, a.mean_weight, a.final_weight) == ("a", 0.75, 0.025, 0.875, 1.0)
    assert (a.rounds, a.quarantined, a.errors, a.missing, a.examples) == (3, 0, 0, 0, 50)
    assert a.signals == {"alignment": None, "entropy": pytest.approx((0.6 + 0.7 + 0.8) / 3)}
    assert (b.client, b.score, b.std, b.mean_weight, b.final_weight) == ("b", 0.375, 0.05, 0.25, 0.25)
    assert (b.rounds, b.quarantined, b.errors, b.missing) == (2, 1, 0, 0)
    assert (never.client, never.score, never.mean_weight, never.final_weight) == ("never", None, None, None)
    assert (never.rounds, never.missing, never.examples) == (0, 0, 100)


def test_the_mean_weight_is_over_the_last_two_of_four_rounds() -> None:
    weights = enumerate((0.9, 0.7, 0.5, 0.25), start=1)
    (row,) = contribution_table([header("a"), *(accepted(n, "a", None, weight) for n, weight in weights)])
    assert row.mean_weight == 0.375


def test_clients_without_scores_stand_by_weight_then_by_number() -> None:
    records = [
        header("site-10", "site-2", "site-1"),
        accepted(1, "site-1", None, 0.2),
        accepted(1, "site-2", None, 0.8),
    ]
    assert [row.client for row in contribution_table(records)] == ["site-2", "site-1", "site-10"]


def test_the_page_holds_the_values(tmp_path: Path) -> None:
    text = report(tmp_path, RECORDS)
    assert rows(text, "Contribution") == [
        ["a", "50", "3", "0.750 ± 0.025", "0.875", "1.000", "0.700", "0", "0", "0"],
        ["b", "50", "2", "0.375 ± 0.050", "0.250", "0.250", "0.650", "1", "0", "0"],
        ["never", "100", "0", "–", "–", "–", "–", "0", "0", "0"],
    ]
    seen = words(text)
    for sentence in (
        "2026-12-01-demo-7f3a ! completed-degraded 1 December 2026, 14:03 UTC · 71 s",
        "1 of 3 rounds lost a reply",
        "accuracy 75.0 % loss 1.500 rounds 3 of 3 nodes 3 time 71 s",
        "cnn5, 61,234 parameters in 10 tensors",
        "fc2.weight (10 × 64)",
        "FFT, ratio 0.05, on 6 of 10 tensors",
        "measured on the nodes’ own validation rows, round 3",
        "3 with 300 training examples as they report them",
        "From 25.0 % in round 1 to 75.0 % in round 3; best: 75.0 % in round 3.",
        "From 0.500 in round 1 to 1.500 in round 3; best: 0.500 in round 1.",
        "Last values: a 0.750, b 0.375.",
    ):
        assert sentence in seen
    assert 'style="width:25.0%"' in text  # b's weight beside a's


def test_the_bands_are_two_standard_deviations(tmp_path: Path) -> None:
    text = report(tmp_path, RECORDS)
    # a: 0.5 +- 0.2, 0.625 +- 0.1, 0.75 +- 0.05. The last half shows 0.275 (b: 0.375 - 0.1) to 0.8, which an
    # axis from 0.2 to 0.8 in steps of 0.2 holds; height 320 - 30 - 38 = 252, so 420 pixels a unit, from 282.
    # The plot is 1000 - 50 - (22 + 6.9) = 921.1 wide.
    assert 'points="50,72 510.6,61.5 971.1,30 971.1,72 510.6,145.5 50,240"' in text


def test_bands_that_would_cover_all_lines_are_a_sentence_instead(tmp_path: Path) -> None:
    text = report(
        tmp_path,
        [
            header("a", "b"),
            accepted(1, "a", 0.55, 0.55, score_std=0.2),
            accepted(1, "b", 0.45, 0.45, score_std=0.19),
            done(1),
        ],
    )
    assert "0.38 by now, are more than all lines are apart (0.10)" in words(text)
    assert "<polygon" not in text


def test_suspects_and_flags_are_advisory_and_come_with_evidence(tmp_path: Path) -> None:
    seen = words(report(tmp_path, RECORDS))
    assert "advisory b lowest score in 2 of 3 rounds over the whole run" in seen
    assert (
        "advisory b lowest score of all robust-z, flagged in 1 round (2); strongest in round 2: "
        "-4.5 against a threshold of -3.5" in seen
    )
    assert "cannot prove that a client has the data" in seen


def test_of_several_flags_the_strongest_is_the_evidence() -> None:
    values = {1: -4.0, 2: -9.0, 3: -5.0}
    records = [
        accepted(n, "a", 0.1, 0.1, flags=(FLAG.model_copy(update={"value": value}),))
        for n, value in values.items()
    ]
    (entry,) = flagged(view([header("a"), *records]))
    assert (entry.rounds, entry.strongest_round, entry.strongest.value) == ((1, 2, 3), 2, -9.0)


def test_an_unfinished_round_has_no_equal_share(tmp_path: Path) -> None:
    # The server was killed when it had written one of the two clients of round 3. Axis from 0 to 0.8,
    # 252 pixels from 282 up; equal shares of 1/2 at 282 - 0.5 * 315 = 124.5, in rounds 1 and 2 alone.
    start: list[Record] = [header("a", "b")]
    for number in (1, 2):
        start += [accepted(number, "a", 0.6, 0.6), accepted(number, "b", 0.4, 0.4), done(number, 0.5)]
    text = report(tmp_path, [*start, accepted(3, "a", 0.8, 0.8)])
    line = re.search(r'<title>equal shares</title><polyline points="([^"]*)"></polyline></g>', text)
    assert line and line[1] == "50,124.5 510.6,124.5"


def test_the_caveat_stands_without_suspects_too(tmp_path: Path) -> None:
    seen = words(report(tmp_path, [header("a"), accepted(1, "a", 1.0, 1.0), done(1, 0.5)]))
    assert "No client stands out" in seen and "cannot prove" in seen
    assert "Nothing: every reply came in time and was accepted." in seen


def test_equal_problems_of_several_rounds_are_one_line(tmp_path: Path) -> None:
    late = "no reply within 600 s"
    records: list[Record] = [header("a", "b")]
    for number in (1, 2, 3, 5):
        records += [
            ClientRecord(round=number, client="a", status="missing", reason=late),
            ClientRecord(round=number, client="b", status="missing", reason=late),
        ]
        records.append(done(number, moved=False, accepted=0, reason="no usable reply"))
    records.append(Joined(round=4, node=node("b"), refused="b is connected already"))
    assert problems(view(records)) == (
        Problem((1, 2, 3, 5), "missing", ("a", "b"), late),
        Problem((1, 2, 3, 5), "model not moved", (), "no usable reply"),
        Problem((4,), "refused", ("b",), "b is connected already"),
    )
    assert rows(report(tmp_path, records), "What went wrong") == [
        ["1–3, 5", "missing", "a, b", late],
        ["1–3, 5", "model not moved", "–", "no usable reply"],
        ["4", "refused", "b", "b is connected already"],
    ]


def test_long_lists_are_cut(tmp_path: Path) -> None:
    names = [f"site-{number}" for number in range(1, 43)]
    records: list[Record] = [header(*names)]
    records += [ClientRecord(round=1, client=name, status="missing", reason="silent") for name in names]
    records += [ClientRecord(round=2, client=name, status="error", reason=f"at {name}") for name in names]
    text = report(tmp_path, records)
    assert "site-1, site-2, site-3, site-4, site-5 and 37 more" in words(text)
    assert len(rows(text, "What went wrong")) == 30
    assert "and 13 more; report.json has them all." in words(text)
    assert len(json.loads((tmp_path / "report.json").read_text())["problems"]) == 43


def test_csv_has_one_row_for_each_client_and_round(tmp_path: Path) -> None:
    report(tmp_path, RECORDS)
    table = spreadsheet(tmp_path)
    assert [(row["round"], row["client"]) for row in table] == [
        ("1", "a"), ("1", "b"), ("2", "a"), ("2", "b"), ("3", "a"), ("3", "b"),
    ]  # fmt: skip
    assert table[3] == {
        "round": "2",
        "client": "b",
        "status": "accepted",
        "reason": "",
        "examples": "50",
        "steps": "",
        "train_loss": "",
        "loss_before": "",
        "accuracy_before": "",
        "seconds": "",
        "update_norm": "",
        "score": "0.375",
        "score_std": "0.05",
        "weight": "0.25",
        "signal_alignment": "",
        "signal_entropy": "0.7",
        "flags": "lowest score of all",
    }


def test_json_holds_the_values(tmp_path: Path) -> None:
    report(tmp_path, RECORDS)
    data = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (data["status"], data["accuracy"], data["loss"]) == ("completed-degraded", 0.75, 1.5)
    assert [row["mean-weight"] for row in data["contribution"]] == [0.875, 0.25, None]
    assert [record["accuracy"] for record in data["rounds"]] == [0.25, 0.5, 0.75]
    assert data["flags"][0]["strongest"]["value"] == -4.5
    assert data["problems"] == [
        {"rounds": [3], "what": "quarantined", "clients": ["b"], "reason": "fc2.weight holds NaN"}
    ]


# -- drift -------------------------------------------------------------------------------------------


def drifted(number: int, low: float = 4.0, **more: object) -> DriftRecord:
    layers = [
        {"name": "fc1.weight", "absolute": 2.0, "relative": 1.5, "cosine": 0.25, "filtered_relative": 1.25},
        {"name": "fc1.bias", "absolute": 0.5, "relative": None, "cosine": None},
    ]
    values: dict[str, object] = {
        "round": number,
        "source": "gradients",
        "filtered": False,
        "clients": 2,
        "dist": (low, *((1.0,) * 9)),
        "std": (0.5,) * 10,
        "energy": (0.1,) * 10,
        "layers": layers,
        "left_out": ("fc1.bias",),
        "seconds": 0.1,
    }
    return DriftRecord.model_validate(values | more)


def test_a_run_without_diagnostics_has_no_section_on_drift(tmp_path: Path) -> None:
    assert "Drift" not in report(tmp_path, RECORDS)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ledger.jsonl", "report.csv", "report.html", "report.json",
    ]  # fmt: skip


def test_the_section_on_drift_holds_the_values(tmp_path: Path) -> None:
    text = report(
        tmp_path, [*RECORDS[:4], drifted(1, 1.0), *RECORDS[4:7], drifted(2, 9.0, cka=0.5), *RECORDS[7:]]
    )
    seen = words(text)
    # Band 0 holds 1 of 10 and 9 of 18.
    assert "Drift is concentrated in the low band: filtering is likely to help. Band 0" in seen
    assert "holds 30.0 % of the distance" in seen and "it would hold 10.0 %" in seen
    assert "the nodes’ full local gradients at the model they received. By our rule" in seen
    assert "concentrated from 20.0 % on, twice a flat share, and flat below 15.0 %" in seen
    assert "Tried on round 2, the filter lowers the relative divergence in 1 of the 1 tensors" in seen
    assert "Left out, too short for 10 bands: 1 of 2 tensors." in seen
    assert rows(text, "Drift between clients") == [
        ["fc1.weight", "1.500", "1.250", "0.250", "–", "2.000"],
        ["fc1.bias", "–", "–", "–", "–", "0.500"],
    ]
    for chart in ("drift-spectrum", "drift-bands", "drift-relative", "drift-cosine", "drift-cka"):
        assert f'id="{chart}-title"' in text


def test_drift_in_each_band_is_drawn_over_the_rounds_that_have_it(tmp_path: Path) -> None:
    text = report(tmp_path, [*RECORDS[:4], drifted(1, 4.0), *RECORDS[4:7], *RECORDS[7:9], drifted(3, 2.0)])
    # Round 2 is a gap, so that rounds 1 and 3 are dots. The axis is from 0 at 202 to 4 at 30.
    line = re.search(r"<title>band 0</title>(.*?)</g>", text)
    assert line and re.findall(r'cy="([^"]*)"', line[1]) == ["30", "116"]


def test_filtered_updates_are_not_judged(tmp_path: Path) -> None:
    seen = words(report(tmp_path, [header("a"), drifted(1, source="updates", filtered=True)]))
    assert "cannot be judged from this run: its updates have passed the gradient filter" in seen
    assert "Band 0, the lowest tenth" not in seen
    assert "the nodes’ updates, divided by their steps and learning rate, filtered." in seen


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"clients": 1}, "There is no drift spectrum: no round had two clients to compare."),
        ({"clients": 3, "layers": ()}, "There is no drift spectrum: no tensor is long enough for 10 bands."),
    ],
)
def test_without_a_spectrum_a_sentence_stands_for_it(
    tmp_path: Path, more: dict[str, object], sentence: str
) -> None:
    nothing: dict[str, object] = {"dist": (), "std": (), "energy": ()}
    seen = words(report(tmp_path, [header("a"), drifted(1, **(nothing | more))]))
    assert sentence in seen and "no round had two clients that differ" in seen


def test_zeros_are_drawn_too(tmp_path: Path) -> None:
    zeros = {"dist": (0.0,) * 10, "std": (0.0,) * 10, "energy": ()}
    layers = ({"name": "w", "absolute": 0.0},)
    seen = words(report(tmp_path, [header("a"), drifted(1, **zeros, layers=layers)]))
    assert "Relative divergence: not defined in any round." in seen


def test_many_tensors_are_faint_but_for_the_extremes_and_the_table_is_cut(tmp_path: Path) -> None:
    layers = [{"name": f"l{i}.weight", "relative": float(i), "cosine": 0.1} for i in range(40)]
    text = report(tmp_path, [header("a"), drifted(1, layers=layers)])
    labels = re.findall(r'class="label"><title>(l[^<]*)</title>', text)
    assert sorted(set(labels)) == sorted(f"l{i}.weight" for i in (0, 1, 2, 37, 38, 39))
    assert "Labelled are the 3 highest and 3 lowest of 40 tensors." in words(text)
    assert len(rows(text, "Drift between clients")) == 30
    assert "and 10 more; report.json has them all." in words(text)


def test_what_nodes_report_of_their_first_step(tmp_path: Path) -> None:
    told = accepted(1, "a", 0.5, 0.5, energy_removed=(0.2, 0.6), band_energies=(3.0, *(1.0 / 9,) * 9))
    older = accepted(1, "b", 0.5, 0.5, energy_removed=(0.1,))
    newer = accepted(2, "b", 0.5, 0.5, band_energies=(0.0,) * 10)
    text = report(tmp_path, [header("a", "b", "c"), told, older, done(1), newer, done(2)])
    assert rows(text, "Drift between clients") == [
        ["a", "1", "40.0 %", "20.0 % to 60.0 %", "75.0 %"],
        ["b", "2", "–", "–", "–"],
    ]
    assert [row["energy_removed"] for row in spreadsheet(tmp_path)] == ["0.2 0.6", "0.1", ""]


def test_drift_stands_in_json_and_in_a_table_of_its_own(tmp_path: Path) -> None:
    report(tmp_path, [header("a"), drifted(1), drifted(2, cka=0.5)])
    data = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert [record["round"] for record in data["drift"]] == [1, 2]
    assert data["drift"][0]["layers"][0]["filtered-relative"] == 1.25
    assert data["drift-judgement"]["verdict"] == "concentrated"
    assert data["drift-judgement"]["share"] == pytest.approx(4 / 13)
    with (tmp_path / "report-drift.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["what"] for row in table] == [*["band"] * 10, *["tensor"] * 2] * 2 + ["models"]
    assert (table[0]["dist"], table[10]["name"], table[10]["cosine"]) == ("4.0", "fc1.weight", "0.25")


# -- foreign text ------------------------------------------------------------------------------------


def test_foreign_text_is_escaped_everywhere(tmp_path: Path) -> None:
    evil = NodeCard(
        name=EVIL,
        examples=5,
        classes=2,
        input_shape=(3,),
        fingerprint=EVIL,
        device=EVIL,
        versions={EVIL: EVIL},
    )
    flag = Flag(test=EVIL, value=-4, threshold=-3.5, text=EVIL)
    start = header("a").model_copy(
        update={
            "run_id": EVIL,
            "time": EVIL,
            "nodes": (evil,),
            "versions": {EVIL: EVIL},
            "config": {EVIL: EVIL},
        }
    )
    text = report(
        tmp_path,
        [
            start,
            accepted(1, EVIL, 0.6, 0.6, flags=(flag,), signals={EVIL: 0.5}),
            accepted(1, "b", 0.4, 0.4),
            ClientRecord(round=1, client="c", status="error", reason=EVIL),
            done(1, 0.5, reason=EVIL, noise={EVIL: 0.5}),
            Joined(round=1, refused=EVIL),
            End(
                status="failed",
                reason=EVIL,
                error=EVIL,
                rounds=1,
                seconds=5,
                suspects=(Suspect(client=EVIL, text=EVIL),),
            ),
        ],
    )
    assert "<script" not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;") >= 20


def test_a_spreadsheet_runs_no_foreign_formula(tmp_path: Path) -> None:
    name = '=HYPERLINK("x")'
    report(tmp_path, [header("a"), ClientRecord(round=1, client=name, status="error", reason="@SUM(1)\n-2")])
    (row,) = spreadsheet(tmp_path)
    assert (row["client"], row["reason"]) == ("'" + name, "'@SUM(1)\n-2")


# -- every ledger that can be left behind --------------------------------------------------------------


@pytest.mark.parametrize("status", ["completed", "completed-degraded", "failed", "stopped"])
def test_every_outcome_has_its_badge(tmp_path: Path, status: str) -> None:
    end = End.model_validate(
        {"status": status, "reason": "the why", "error": "RunFailed", "rounds": 1, "seconds": 3}
    )
    text = report(tmp_path, [header("a"), done(1, 0.5), end])
    assert re.search(rf'<span class="badge {status}">.*?</span> {status}</span>', text)
    assert "the why (RunFailed)" in words(text)


@pytest.mark.parametrize("length", range(1, len(RECORDS)))
def test_a_killed_server_leaves_a_report(tmp_path: Path, length: int) -> None:
    text = report(tmp_path, RECORDS[:length], torn='{"kind":"client","rou')
    assert 'class="badge did-not-end"' in text
    after = sum(isinstance(record, RoundRecord) for record in RECORDS[:length])
    where = f"after round {after}" if after else "before the first round was over"
    assert f"The ledger stops {where}: the server was killed" in words(text)
    assert json.loads((tmp_path / "report.json").read_text())["status"] == "did not end"


def test_the_last_round_stands_in_for_the_end(tmp_path: Path) -> None:
    seen = words(report(tmp_path, RECORDS[:7]))
    assert "accuracy 50.0 % loss 1.000 rounds 2 of 3 nodes 3 time 10 s" in seen


def test_a_resumed_run_counts_the_repeated_round_once(tmp_path: Path) -> None:
    stopped = End(status="stopped", rounds=1, seconds=5)
    records = [header("a"), accepted(1, "a", 0.1, 1.0), done(1, 0.1), stopped]
    text = report(tmp_path, [*records, header("a"), accepted(1, "a", 0.9, 1.0), done(1, 0.9)])
    assert 'class="badge did-not-end"' in text
    assert rows(text, "Contribution")[0][2:4] == ["1", "0.900"]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"contribution": "off"}, "Contribution was off in this run, so there are no scores."),
        ({"weighting": "uniform"}, "The weighting “uniform” computes no scores."),
        ({"weighting": "examples"}, "The weighting “examples” computes no scores."),
        ({}, "No round came as far as scores."),
    ],
)
def test_without_scores_a_sentence_stands_for_the_chart(
    tmp_path: Path, config: dict[str, str], sentence: str
) -> None:
    records = [header("a", "b", **config), accepted(1, "a", None, 0.5), accepted(1, "b", None, 0.5)]
    text = report(tmp_path, [*records, done(1, 0.5)])
    assert sentence in words(text)
    assert "all clients whose replies were accepted had the same weight" in words(text)
    assert 'id="scores-title"' not in text and 'id="weights-title"' not in text and ">Score<" not in text


@pytest.mark.parametrize(("layer", "named"), [("", "the head’s"), ("body.0.weight", "body.0.weight’s")])
def test_the_layer_whose_entropy_is_read_has_its_name(tmp_path: Path, layer: str, named: str) -> None:
    for weighting, more in (("spectralfed", ""), ("spectralfuse", " and alignment of the head’s")):
        records = [header("a", **{"weighting": weighting, "entropy-layer": layer})]
        assert f"entropy of {named} update{more}" in words(report(tmp_path, records))


def test_nothing_measured_is_said_and_not_drawn(tmp_path: Path) -> None:
    text = report(tmp_path, [header("a"), accepted(1, "a", 1.0, 1.0), done(1)])
    seen = words(text)
    assert "The accuracy was never measured." in seen and "The loss was never measured." in seen
    assert "accuracy – loss – rounds 1 of 3" in seen and "Accuracy and loss not measured" in seen


def test_a_hundred_clients_and_300_rounds(tmp_path: Path) -> None:
    names = [f"site-{number}" for number in range(1, 101)]
    records: list[Record] = [header(*names)]
    for number in range(1, 301):
        records += [accepted(number, name, i / 100, i / 5050) for i, name in enumerate(names, start=1)]
        records.append(done(number, 0.5, rounds=300))
    text = report(tmp_path, records)
    labels = re.findall(r'class="label"><title>([^<]*)</title>', text)
    assert sorted(set(labels) - {"accuracy", "loss"}) == [
        "site-1", "site-100", "site-2", "site-3", "site-98", "site-99",
    ]  # fmt: skip
    assert "Labelled are the 3 highest and 3 lowest of 100 clients" in words(text)
    assert len(rows(text, "Contribution")) == 100
    assert len(text) < 3_000_000


def test_without_a_header_there_is_no_report(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_text('{"kind":"header","for')
    with pytest.raises(DataError, match="no header"):
        write_report(tmp_path)
    with pytest.raises(DataError, match="no ledger at"):
        write_report(tmp_path / "elsewhere")
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.jsonl"]


def test_a_report_that_cannot_be_written_leaves_nothing_half_done(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with LedgerWriter(tmp_path / "ledger.jsonl") as ledger:
        ledger.write(RECORDS[0])
    with pytest.raises(DataError, match="cannot write the report into"):
        write_report(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ledger.jsonl", "report.csv", "report.html", "report.json",
    ]  # fmt: skip


# -- small functions ---------------------------------------------------------------------------------


def test_times_are_readable() -> None:
    shown = [duration(seconds).replace("\u00a0", " ") for seconds in (0.04, 9.94, 71, 185, 7620, 360000)]
    assert shown == ["0.0 s", "9.9 s", "71 s", "3 min 05 s", "2 h 07 min", "100 h 00 min"]


def test_stretches_and_caps() -> None:
    assert ranges([3, 4, 5, 8, 10, 11]) == "3–5, 8, 10–11"
    assert ranges([]) == ""
    assert capped(["a", "b", "c"], 3) == "a, b, c"
    assert capped(["a", "b", "c"], 2) == "a, b and 1 more"


# -- how it looks ------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_have_enough_contrast_on_light_and_dark() -> None:
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, flags=re.DOTALL)
    for scheme in (light, dark):
        colour = dict(re.findall(r"--(\w+): (#\w{6})", scheme))
        for name in ("text", "muted", "good", "warn", "bad", "calm"):
            assert contrast(colour[name], colour["page"]) >= 4.5, name
            assert contrast(colour[name], colour["card"]) >= 4.5, name
        for line in (f"s{index}" for index in range(8)):
            assert contrast(colour[line], colour["page"]) >= 3, line


def bytes_of(png: Path) -> tuple[int, int, bytes]:
    """Width, height and the unpacked scan lines of a PNG."""
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    packed, at = b"", 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"IDAT":
            packed += data[at + 8 : at + 8 + length]
        at += length + 12
    return width, height, zlib.decompress(packed)


@pytest.mark.browser
def test_chromium_shows_the_page(tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    assert browser, "this test needs Chromium: apt-get install -y chromium"
    report(tmp_path, RECORDS)
    picture = tmp_path / "report.png"
    subprocess.run(
        [
            browser,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1160,2400",
            f"--screenshot={picture}",
            (tmp_path / "report.html").as_uri(),
        ],
        check=True,
        timeout=120,
        capture_output=True,
    )
    width, height, lines = bytes_of(picture)
    assert (width, height) == (1160, 2400)
    assert len(set(lines)) > 100  # a blank page has hardly more than one value
