"""Text that others wrote stays text, in a browser and in a spreadsheet."""

from pathlib import Path

from common.ledger import ClientRecord, End, Flag, Joined, NodeCard, Suspect
from tests.server_app.report.ledgers import accepted, done, header
from tests.server_app.report.pages import report, spreadsheet

EVIL = "<script>alert(1)</script>\"'&"


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
