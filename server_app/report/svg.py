"""Line charts as inline SVG: pure functions from numbers to markup, without a script or an image.

Colours and dashes are classes that the page's style sheet defines, so one drawing serves a light
screen, a dark screen and paper.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from common.text import NO_BREAK_SPACE, shorten
from server_app.report.markup import Html, el, join, pixels

LEFT, TOP, BOTTOM, RIGHT = 50.0, 30.0, 38.0, 14.0  # margins around the plot, in pixels
LABEL_GAP = 15.0  # between the middles of two labels
BAND_ROOM = 1.5  # times the spread of the lines: how far a band may stretch the axis beyond them
LABEL_LEAD = 22.0  # from the plot to its labels
CHARACTER = 6.9  # generous width of a character of a label
LONGEST_LABEL = 18  # characters
COLOURS, DASHES = 8, 4
HIGHEST = 1e300  # that an axis shows

Values = tuple[float | None, ...]
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line. ``None`` among its values is a gap."""

    name: str
    values: Values  # one for each x
    style: str  # CSS classes, see ``palette``
    band: Values = ()  # half the height of the band around the line
    label: str = ""  # stands right of the plot, at the height of the last value


@dataclass(frozen=True)
class Chart:
    """What a chart shows. ``x`` are whole numbers in rising order, at least one."""

    id: str  # unique in the page
    title: str
    description: str  # for those who cannot see it
    x: tuple[int, ...]
    series: tuple[Series, ...]
    x_label: str
    y_label: str
    width: float = 490.0
    height: float = 240.0
    percent: bool = False
    include: tuple[float, ...] = ()  # values that the y axis must reach
    bounds: tuple[float, float] = (-math.inf, math.inf)  # values that it must not pass


def palette(index: int) -> str:
    """The classes of the index-th line: eight colours, then the same ones dashed."""
    return f"s{index % COLOURS} d{index // COLOURS % DASHES}"


def scale(low: float, high: float, start: float, stop: float) -> Callable[[float], float]:
    """The linear map of [low, high] to [start, stop]; the middle of it if low equals high."""
    if low == high:
        return lambda value: (start + stop) / 2
    return lambda value: start + (value - low) / (high - low) * (stop - start)


def within(value: float, bounds: tuple[float, float]) -> float:
    """``value``, or the bound that it is beyond."""
    return min(max(value, bounds[0]), bounds[1])


def nice_step(span: float, count: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten that cuts ``span`` > 0 into at most ``count`` parts."""
    power = 10.0 ** math.floor(math.log10(span / count))
    return next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power * count >= span * (1 - 1e-9))


def y_ticks(low: float, high: float, bounds: tuple[float, float], count: int = 5) -> list[float]:
    """Round numbers, evenly spaced, of which the first and last enclose [low, high].

    What is beyond 1e300 is enclosed as far as that, so that the distance of two numbers is one, too.
    """
    low, high = within(low, (-HIGHEST, HIGHEST)), within(high, (-HIGHEST, HIGHEST))
    size = max(abs(low), abs(high))
    if high - low <= 1e-9 * max(size, 1e-9):
        pad = size * 0.1 if size > 1e-9 else 0.5
        low, high = max(low - pad, bounds[0]), min(high + pad, bounds[1])
    step = nice_step(high - low, count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def x_ticks(first: int, last: int, count: int = 10) -> list[int]:
    """Round whole numbers in [first, last]; ``first`` itself too if it has room."""
    if first == last:
        return [first]
    step = max(1, round(nice_step(last - first, count)))
    ticks = list(range(math.ceil(first / step) * step, last + 1, step))
    return ticks if ticks[0] - first <= step / 2 else [first, *ticks]


def tick_text(value: float, step: float, percent: bool) -> str:
    """A tick with the decimals that its step needs."""
    if percent:
        return f"{value * 100:.{_decimals(step * 100)}f}{NO_BREAK_SPACE}%"
    if abs(value) >= 1e5 or step < 1e-4:
        return f"{value:.3g}"
    return f"{value:.{_decimals(step)}f}"


def apart(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions at least ``gap`` apart, in the same order, as near to the old ones as can be (squares).

    They stay in [low, high] as far as there is room. Pool-adjacent-violators on the positions less
    their rank times the gap.
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    pools: list[tuple[float, int]] = []  # mean, count
    for rank, index in enumerate(order):
        pools.append((positions[index] - rank * gap, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (mean, count), (other, more) = pools.pop(), pools.pop()
            pools.append(((mean * count + other * more) / (count + more), count + more))
    flat = [mean for mean, count in pools for _ in range(count)]
    limit = max(low, high - gap * (len(positions) - 1))
    moved = [0.0] * len(positions)
    for rank, index in enumerate(order):
        moved[index] = min(max(flat[rank], low), limit) + rank * gap
    return moved


def line_chart(chart: Chart) -> Html:
    """The drawing of a chart, as one ``svg`` element with a title and a description."""
    right = chart.width - _right_margin(chart.series)
    bottom = chart.height - BOTTOM
    ticks = y_ticks(*_extent(chart), chart.bounds)
    x = scale(chart.x[0], chart.x[-1], LEFT, right)
    y = scale(ticks[0], ticks[-1], bottom, TOP)
    across = [x(number) for number in chart.x]
    clip = f"{chart.id}-clip"
    return el(
        "svg",
        el("title", chart.title, id=f"{chart.id}-title"),
        el("desc", chart.description, id=f"{chart.id}-desc"),
        el("clipPath", _rect(LEFT, TOP, right - LEFT, bottom - TOP), id=clip),
        _axes(chart, ticks, x, y, right, bottom),
        el("g", *(_bands(series, across, y) for series in chart.series), clip_path=f"url(#{clip})"),
        *(_line(series, across, y) for series in chart.series),
        _labels(chart.series, across, y, right, bottom),
        viewBox=f"0 0 {pixels(chart.width)} {pixels(chart.height)}",
        role="img",
        aria_labelledby=f"{chart.id}-title {chart.id}-desc",
    )


def _extent(chart: Chart) -> tuple[float, float]:
    """What the y axis must show: all lines, and of their bands as much as leaves the lines apart.

    A first score is hardly more than a guess, and its whole band would press the lines flat.
    """
    half = len(chart.x) // 2
    lines = [value for series in chart.series for value in series.values if value is not None] or [0.0]
    room = BAND_ROOM * max(max(lines) - min(lines), 0.1 * max(map(abs, lines)))
    values = [*lines, *chart.include]
    for series in chart.series:
        for value, band in list(zip(series.values, series.band, strict=False))[half:]:
            if value is not None and band is not None:
                values += [max(value - band, min(lines) - room), min(value + band, max(lines) + room)]
    return within(min(values), chart.bounds), within(max(values), chart.bounds)


def _decimals(step: float) -> int:
    return max(0, -math.floor(math.log10(step) + 1e-9))


def _right_margin(series: Sequence[Series]) -> float:
    longest = max((min(len(line.label), LONGEST_LABEL) for line in series), default=0)
    return LABEL_LEAD + longest * CHARACTER if longest else RIGHT


def _axes(
    chart: Chart,
    ticks: list[float],
    x: Callable[[float], float],
    y: Callable[[float], float],
    right: float,
    bottom: float,
) -> Html:
    step = ticks[1] - ticks[0]
    rows = (
        join(
            _segment("grid", LEFT, y(tick), right, y(tick)),
            el("text", tick_text(tick, step, chart.percent), x=LEFT - 8, y=y(tick) + 4, class_="end"),
        )
        for tick in ticks
    )
    columns = (
        join(
            _segment("tick", x(number), bottom, x(number), bottom + 4),
            el("text", str(number), x=x(number), y=bottom + 17, class_="middle"),
        )
        for number in x_ticks(chart.x[0], chart.x[-1])
    )
    return join(
        *rows,
        *columns,
        _segment("axis", LEFT, bottom, right, bottom),
        el("text", chart.y_label, x=4, y=14, class_="name"),
        el("text", chart.x_label, x=(LEFT + right) / 2, y=chart.height - 5, class_="name middle"),
    )


def _runs(values: Sequence[float | None], across: Sequence[float]) -> list[list[tuple[int, Point]]]:
    """The stretches without a gap, as (index, (x, value))."""
    indexed = [(i, (place, value)) for i, (place, value) in enumerate(zip(across, values, strict=True))]
    return [
        [(i, (place, value)) for i, (place, value) in group if value is not None]
        for present, group in groupby(indexed, key=lambda item: item[1][1] is not None)
        if present
    ]


def _line(series: Series, across: Sequence[float], y: Callable[[float], float]) -> Html:
    """Stretches as polylines; a value between two gaps, and the last one of a labelled line, as a dot."""
    runs = [[(place, y(value)) for _, (place, value) in run] for run in _runs(series.values, across)]
    lines = [el("polyline", points=_points(run)) for run in runs if len(run) > 1]
    dots = [run[0] for run in runs if len(run) == 1]
    if series.label and runs and len(runs[-1]) > 1:
        dots.append(runs[-1][-1])
    return el(
        "g",
        el("title", series.name),
        *lines,
        *(el("circle", cx=place, cy=height, r=2.6) for place, height in dots),
        class_=f"line {series.style}",
    )


def _bands(series: Series, across: Sequence[float], y: Callable[[float], float]) -> Html:
    if not series.band:
        return Html("")
    both = tuple(
        None if band is None else value for value, band in zip(series.values, series.band, strict=True)
    )
    polygons = []
    for run in _runs(both, across):
        edge = [(place, value, series.band[i] or 0.0) for i, (place, value) in run]
        upper = [(place, y(value + band)) for place, value, band in edge]
        lower = [(place, y(value - band)) for place, value, band in reversed(edge)]
        polygons.append(el("polygon", points=_points(upper + lower)))
    return el("g", *polygons, class_=f"band {series.style}")


def _labels(
    series: Sequence[Series],
    across: Sequence[float],
    y: Callable[[float], float],
    right: float,
    bottom: float,
) -> Html:
    named = [
        (line, runs[-1][-1][1]) for line in series if line.label and (runs := _runs(line.values, across))
    ]
    ends = [(x, y(value)) for _, (x, value) in named]
    places = apart([height for _, height in ends], LABEL_GAP, TOP, bottom)
    return join(
        *(_label(line, end, right, place) for (line, _), end, place in zip(named, ends, places, strict=True))
    )


def _label(line: Series, end: Point, right: float, place: float) -> Html:
    """A label and the line to it, dotted up to the edge of the plot if the series ends before."""
    x, height = end
    tail = el("polyline", points=_points([(x + 6, height), (right, height)]), class_="tail")
    lead = el("polyline", points=_points([(right + 4, height), (right + LABEL_LEAD - 6, place)]))
    text = el(
        "text",
        el("title", line.name),
        shorten(line.label, LONGEST_LABEL),
        x=right + LABEL_LEAD - 2,
        y=place + 4,
        class_="label",
    )
    return join(el("g", tail if x < right else "", lead, class_=f"lead {line.style}"), text)


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{pixels(x)},{pixels(y)}" for x, y in points)


def _segment(style: str, x1: float, y1: float, x2: float, y2: float) -> Html:
    return el("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=style)


def _rect(x: float, y: float, width: float, height: float) -> Html:
    return el("rect", x=x, y=y, width=width, height=height)
