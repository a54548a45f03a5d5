"""What a server says when it ends."""

from datetime import UTC, datetime
from pathlib import Path

from specfed.commands.server import what_ran


def test_what_ran_is_told_from_the_ledgers(tmp_path: Path) -> None:
    def ledger(run: str, *lines: str) -> None:
        (tmp_path / run).mkdir()
        (tmp_path / run / "ledger.jsonl").write_text("".join(f"{line}\n" for line in lines))

    model = '"model": {"name": "m", "parameters": 1, "tensors": 1, "filtered_tensors": 0, "head": "h", "head_shape": [2, 1]}'
    header = (
        '{"kind": "header", "run_id": "r", "folder": "f", "time": "t", "config": {"rounds": 9}, "versions": {}, '
        f'"nodes": [], {model}}}'.replace("_", "-")
    )
    round_ = '{"kind": "round", "round": 4, "rounds": 9, "sampled": 1, "accepted": 1, "moved": true, "seconds": 1, "elapsed": 1}'
    end = '{"kind": "end", "status": "%s", "rounds": 4, "seconds": 1}'
    ledger("a-done", header, round_, end % "completed-degraded")
    ledger("b-stopped", header, round_, end % "stopped")
    ledger("c-killed", header, round_)
    (tmp_path / "b-stopped/checkpoints/round-0004").mkdir(parents=True)
    (tmp_path / "c-killed/checkpoints/round-0003").mkdir(parents=True)
    (tmp_path / "c-new/checkpoints/.round-0001.77").mkdir(parents=True)
    (tmp_path / "c-new/ledger.jsonl").write_text(f"{header}\n")
    ledger("d-never-began", end % "failed")
    ledger("e-foreign", "not a ledger")
    assert list(what_ran(tmp_path, 0)) == [
        "run a-done · completed-degraded · 4 of 9 rounds",
        "run b-stopped · stopped after round 4 of 9; resume=b-stopped goes on with it",
        "run c-killed · stopped after round 4 of 9; resume=c-killed goes on with it",
        "run c-new · stopped before round 1 of 9 was over; it has to start anew",
        f"{tmp_path / 'e-foreign' / 'ledger.jsonl'}, line 1: not a ledger line (Invalid JSON: expected ident at line 1 "
        "column 2): 'not a ledger'",
    ]
    assert list(what_ran(tmp_path, datetime.now(UTC).timestamp() + 60)) == []
