"""The numbers beside the page: report.csv and report.json."""

import json
from pathlib import Path

from tests.server_app.report.ledgers import RECORDS
from tests.server_app.report.pages import report, spreadsheet


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
