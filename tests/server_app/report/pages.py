"""A report is written and its page read as a reader, a parser and a spreadsheet see it."""

import csv
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

from common.ledger import LedgerWriter, Record
from server_app.report.writing import write_report

VOID = {"meta", "br"}


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
