"""Every ledger that can be left behind has a report, or one sentence that says why not."""

import json
import re
from pathlib import Path

import pytest

from common.errors import DataError
from common.ledger import End, LedgerWriter, RoundRecord
from server_app.report.writing import write_report
from tests.server_app.report.ledgers import RECORDS, accepted, done, header
from tests.server_app.report.pages import report, rows, words


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
