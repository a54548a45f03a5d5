"""The section on drift between clients, and its table."""

import csv
import json
import re
from pathlib import Path

import pytest

from common.ledger import DriftRecord
from tests.server_app.report.ledgers import RECORDS, accepted, done, header
from tests.server_app.report.pages import report, rows, spreadsheet, words


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
    assert "(FFT where the run has none) lowers the relative divergence in 1 of the 1 tensors" in seen
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
