"""The report that a site may see: its own rows, what all share, and not a name of the others."""

import csv
import io
import json
from pathlib import Path

import pytest

from common.errors import ConfigError
from common.ledger import Flag, Joined, LedgerWriter, Record
from server_app.report.redaction import ANOTHER, for_site
from server_app.report.run_view import view
from server_app.report.writing import write_report
from tests.records import node
from tests.server_app.report.ledgers import RECORDS, accepted, done, header
from tests.server_app.report.pages import check_page

COPY = Flag(test="copy", value=0.999, threshold=0.99, text="its update brings what that of clinic-10 brings")
NAMES = ("clinic-1", "clinic-10", "lab")
LEDGER: tuple[Record, ...] = (
    header(*NAMES),
    Joined(round=1, node=node("stranger"), refused="stranger is not enrolled"),
    accepted(1, "clinic-1", 0.5, 0.25, score_std=0.1, flags=(COPY,)),
    accepted(1, "clinic-10", 0.625, 0.375, score_std=0.1, reason="slow"),
    accepted(1, "lab", 0.75, 0.375, score_std=0.1),
    done(1, 0.5, accepted=3, reason="clinic-10, lab: their scores are not believed; clinic-1 is"),
)


def written(folder: Path, site: str) -> dict[str, str]:
    with LedgerWriter(folder / "ledger.jsonl") as ledger:
        for record in LEDGER:
            ledger.write(record)
    path = write_report(folder, site)
    assert path == folder / f"report-{site}.html" and not (folder / "report.html").exists()
    return {kind: (folder / f"report-{site}.{kind}").read_text("utf-8") for kind in ("html", "json", "csv")}


@pytest.mark.parametrize("site", NAMES)
def test_no_name_and_no_number_of_the_others_is_in_any_file(tmp_path: Path, site: str) -> None:
    files = written(tmp_path, site)
    for text in files.values():
        for other in {*NAMES, "stranger"} - {site}:
            # "clinic-1" is the beginning of "clinic-10", as which it may be there.
            rest = text.replace(site, "") if site.startswith(other) else text
            assert other not in rest.replace("label", "")
    check_page(files["html"])
    told = json.loads(files["json"])
    assert (told["site"], [one["name"] for one in told["nodes"]]) == (site, [site])
    assert [row["client"] for row in told["contribution"]] == [site]
    rows = list(csv.DictReader(io.StringIO(files["csv"])))
    assert [(row["client"], row["weight"]) for row in rows] == [
        (site, "0.25" if site == "clinic-1" else "0.375")
    ]


def test_sentences_keep_their_sense(tmp_path: Path) -> None:
    run = for_site(view(LEDGER), "clinic-1")
    assert run.clients[0].flags[0].text == f"its update brings what that of {ANOTHER} brings"
    assert run.rounds[0].reason == f"{ANOTHER}, {ANOTHER}: their scores are not believed; clinic-1 is"
    assert run.others == 2 and run.header.folder == "2026-12-01-demo-7f3a"


def test_what_all_share_stays() -> None:
    whole, own = view(RECORDS), for_site(view(RECORDS), "a")
    assert (own.accuracy, own.loss, own.status, own.seconds) == (0.75, 1.5, "completed-degraded", 71)
    assert [r.accuracy for r in own.rounds] == [r.accuracy for r in whole.rounds]
    assert own.end is not None and own.end.suspects == ()  # b is the suspect


def test_the_page_says_for_whom_it_is_and_draws_an_equal_share(tmp_path: Path) -> None:
    page = written(tmp_path, "lab")["html"]
    assert "report of a federated training run, for lab alone" in page
    assert "3, and of the others their number is all that is told" in page
    assert (
        "lab does not stand out." in page and "every reply of lab came in time" not in page
    )  # a fallback was
    assert "had the same weight" not in page and "equal shares" in page


def test_a_site_that_never_took_part_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'no client "lb" in run .*\. Did you mean "lab"\?'):
        written(tmp_path, "lb")
