"""Pieces that all sections of the HTML report are made of: texts for numbers, tables, figures."""

from collections.abc import Iterable, Sequence

from common.text import NO_BREAK_SPACE, shorten
from server_app.report.markup import Html, el
from server_app.report.svg import COLOURS, LONGEST_LABEL, Chart, line_chart

NONE = "–"
MOST_ROWS = 30  # of a list of problems or flags
MOST_TEXT = 300  # characters of a text that came from outside
EXTREMES = 3  # so many of the highest and of the lowest lines are labelled if a chart has many


def duration(seconds: float) -> str:
    """71 s, 3 min 05 s, 2 h 07 min."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole}{NO_BREAK_SPACE}s" if seconds >= 10 else f"{seconds:.1f}{NO_BREAK_SPACE}s"
    if whole < 7200:
        return f"{whole // 60}{NO_BREAK_SPACE}min {whole % 60:02d}{NO_BREAK_SPACE}s"
    return f"{whole // 3600:,}{NO_BREAK_SPACE}h {whole % 3600 // 60:02d}{NO_BREAK_SPACE}min"


def ranges(numbers: Sequence[int]) -> str:
    """Rising numbers with their stretches joined: 3–5, 8."""
    stretches: list[list[int]] = []
    for number in numbers:
        if stretches and number == stretches[-1][-1] + 1:
            stretches[-1].append(number)
        else:
            stretches.append([number])
    return ", ".join(f"{s[0]}–{s[-1]}" if len(s) > 1 else str(s[0]) for s in stretches)


def capped(items: Sequence[str], most: int) -> str:
    """The items with commas between; of too many the first ones, "and 37 more"."""
    shown = ", ".join(items[:most])
    return f"{shown} and {len(items) - most:,} more" if len(items) > most else shown


def extremes(ranked: Sequence[str]) -> list[str]:
    """The lines of a chart that get a label: all if there is a colour for each, else those at both ends."""
    return [*ranked] if len(ranked) <= COLOURS else [*ranked[:EXTREMES], *ranked[-EXTREMES:]]


def label_note(labelled: int, lines: int, what: str) -> str:
    """Which of so many lines have a label, in a sentence that ends with ``what``; empty if all have."""
    if labelled == lines:
        return ""
    return f"Labelled are the {EXTREMES} highest and {EXTREMES} lowest of {lines} {what}."


def in_digits(value: float | None) -> str:
    """Three decimals, or three digits where these would hide the value."""
    if value is None:
        return NONE
    return f"{value:.3f}" if value == 0 or 5e-4 <= abs(value) < 1e5 else f"{value:.2e}"


def in_percent(value: float | None) -> str:
    """A share with one decimal."""
    return NONE if value is None else f"{100 * value:.1f}{NO_BREAK_SPACE}%"


def in_full(value: int | None) -> str:
    """A whole number with its thousands apart."""
    return NONE if value is None else f"{value:,}"


def dimensions(shape: Sequence[int]) -> str:
    """10 × 64; an empty shape is a scalar's."""
    return " × ".join(map(str, shape)).replace(" ", NO_BREAK_SPACE) or "scalar"


def section(title: str, *content: Html) -> Html:
    """A titled part of the page."""
    return el("section", el("h2", title), *content)


def table(head: Sequence[Html], body: Iterable[Html]) -> Html:
    """A table in a box of its own that scrolls sideways."""
    return el("div", el("table", el("thead", el("tr", *head)), el("tbody", *body)), class_="scroll")


def row_name(name: str) -> Html:
    """A row's head; a short name is not broken at its hyphens."""
    style = "whole" if len(name) <= LONGEST_LABEL else "words"
    return el("th", shorten(name, MOST_TEXT), scope="row", class_=style)


def column(name: str, style: str | None = None) -> Html:
    """The head of a column."""
    return el("th", name, scope="col", class_=style)


def cell(text: str, style: str = "number") -> Html:
    """A cell, right-aligned unless told otherwise."""
    return el("td", text, class_=style)


def cut_off(count: int) -> Html:
    """The sentence below a list that was cut; nothing below one that was not."""
    if count <= MOST_ROWS:
        return Html("")
    return el("p", f"and {count - MOST_ROWS:,} more; report.json has them all.", class_="muted note")


def figure(chart: Chart, note: str = "") -> Html:
    """A chart with its title and a note above it."""
    caption = el("figcaption", el("strong", chart.title), el("span", note) if note else "")
    wide = "wide" if chart.width > 600 else None
    return el("figure", caption, el("div", line_chart(chart), class_="scroll"), class_=wide)


def tally(count: int) -> Html:
    """A count of bad things: loud unless it is 0."""
    return cell(in_full(count), "number bad" if count else "number muted")


def bar_of(weight: float | None, largest: float) -> Html:
    """A weight with a bar, the largest one being full."""
    if weight is None or largest <= 0:
        return cell(in_digits(weight))
    width = f"width:{max(0.0, 100 * weight / largest):.1f}%"
    bar = el("span", el("span", style=width), class_="bar", aria_hidden="true")
    return el("td", el("span", bar, el("span", in_digits(weight)), class_="weight"), class_="number")


def plus_minus(value: float | None, std: float | None) -> str:
    """A value and, if there is one, its standard deviation."""
    spread = f" ± {in_digits(std)}".replace(" ", NO_BREAK_SPACE) if std is not None else ""
    return in_digits(value) + spread
