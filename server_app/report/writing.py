"""The report of a run in three forms, from its ledger alone.

report.html is for people, report.json for programs, report.csv (one row for each client and round)
for a spreadsheet, with report-drift.csv beside it if the run measured drift. A run that was killed has a
report too.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from common.errors import DataError
from common.files import write_whole
from common.ledger import LEDGER, ClientRecord, read
from common.text import kebab, to_json
from server_app.report.contribution import contributions
from server_app.report.drift_view import csv_rows, judge
from server_app.report.page import page
from server_app.report.redaction import for_site
from server_app.report.run_view import RunView, flagged, problems, view

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def write_report(folder: Path, site: str = "") -> Path:
    """Write the report's files beside ``folder``/ledger.jsonl; the path of report.html.

    With a ``site``, what that site may see of it goes to report-SITE.html and its like. Each file appears
    whole or not at all. Raises DataError if there is no ledger, if it is damaged or holds no header, and if
    the folder cannot be written, and ConfigError for a site that the run does not know.
    """
    run = view(read(folder / LEDGER))
    if site:
        run = for_site(run, site)
    name = f"report-{quote(site, safe=' ')}" if site else "report"
    files = {f"{name}.csv": as_csv(run), f"{name}.json": to_json(as_dict(run)), f"{name}.html": page(run)}
    if run.drift:
        files["report-drift.csv"] = drift_csv(run)
    try:
        for file, text in files.items():
            write_whole(folder / file, text.encode())
    except OSError as error:
        raise DataError(f"cannot write the report into {folder}: {error.strerror}") from None
    return folder / f"{name}.html"


def as_dict(run: RunView) -> dict[str, object]:
    """The run as plain values for JSON, keys in kebab-case as in the ledger."""
    return {
        "run-id": run.header.run_id,
        "site": run.site,
        "status": run.status,
        "reason": run.reason,
        "error": run.end.error if run.end else "",
        "time": run.header.time,
        "seconds": run.seconds,
        "accuracy": run.accuracy,
        "loss": run.loss,
        "evaluated-on": run.measured.evaluated_on if run.measured else "none",
        "config": run.header.config,
        "versions": run.header.versions,
        "model": run.header.model.model_dump(mode="json", by_alias=True),
        "nodes": [node.model_dump(mode="json", by_alias=True) for node in run.nodes],
        "rounds": [record.model_dump(mode="json", by_alias=True, exclude={"kind"}) for record in run.rounds],
        "drift": [record.model_dump(mode="json", by_alias=True, exclude={"kind"}) for record in run.drift],
        "drift-judgement": asdict(judge(run.drift)) if run.drift else None,
        "contribution": [_kebab(asdict(row)) for row in contributions(run)],
        "suspects": [s.model_dump(mode="json", by_alias=True) for s in (run.end.suspects if run.end else ())],
        "flags": [
            {
                "client": entry.client,
                "test": entry.test,
                "rounds": entry.rounds,
                "strongest-round": entry.strongest_round,
                "strongest": entry.strongest.model_dump(mode="json", by_alias=True),
            }
            for entry in flagged(run)
        ],
        "problems": [asdict(problem) for problem in problems(run)],
    }


def as_csv(run: RunView) -> str:
    """One row for each client and round; an empty cell where nothing was measured.

    A text that a spreadsheet would run as a formula comes with an apostrophe before it.
    """
    signals = sorted({name for record in run.clients for name in record.signals})
    lists = ("energy_removed", "band_energies")
    told = [name for name in lists if any(getattr(record, name) for record in run.clients)]
    plain = [name for name in ClientRecord.model_fields if name not in ("kind", "signals", "flags", *lists)]
    rows = [[*plain, *(f"signal_{name}" for name in signals), *told, "flags"]]
    for record in run.clients:
        rows.append(
            [
                *(_cell(getattr(record, name)) for name in plain),
                *(_cell(record.signals.get(name)) for name in signals),
                *(_cell(" ".join(map(str, getattr(record, name)))) for name in told),
                _cell("; ".join(flag.text for flag in record.flags)),
            ]
        )
    return _comma_separated(rows)


def drift_csv(run: RunView) -> str:
    """The drift of each round: a row a frequency band, a row a tensor, and one for the CKA if measured."""
    return _comma_separated([_cell(value) for value in row] for row in csv_rows(run.drift))


def _comma_separated(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _cell(value: str | float | None) -> str:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA_STARTS) else value
    return "" if value is None else str(value)


def _kebab(values: dict[str, object]) -> dict[str, object]:
    return {kebab(key): value for key, value in values.items()}
