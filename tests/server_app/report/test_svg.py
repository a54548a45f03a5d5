"""Charts: pixels computed by hand, and what their small functions promise."""

import math
import re
from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from server_app.report.markup import Html, el
from server_app.report.svg import (
    Chart,
    Series,
    apart,
    line_chart,
    nice_step,
    palette,
    scale,
    tick_text,
    x_ticks,
    y_ticks,
)

NUMBER = st.floats(-1e12, 1e12)


def chart(values: tuple[float | None, ...], **changes: object) -> str:
    plain: dict[str, object] = {
        "id": "c",
        "title": "T",
        "description": "D",
        "x": tuple(range(1, len(values) + 1)),
        "series": (Series("line", values, palette(0)),),
        "x_label": "round",
        "y_label": "accuracy",
    }
    return line_chart(Chart(**(plain | changes)))  # type: ignore[arg-type]


def points(svg: str, shape: str = "polyline") -> list[str]:
    return re.findall(rf'<{shape} points="([^"]*)"', svg)


def test_two_points_stand_where_they_should() -> None:
    # Without labels the plot is 490 - 50 - 14 = 426 wide, from x 50 to 476, and 240 - 30 - 38 = 172 high,
    # from y 30 down to 202. The values 0 and 1 are the ends of the axis.
    assert points(chart((0.0, 1.0))) == ["50,202 476,30"]


def test_a_value_between_two_ticks_is_interpolated() -> None:
    # 0.25 on an axis from 0 to 1: 202 - 0.25 * 172 = 159; the second of three rounds is at 50 + 426 / 2.
    assert points(chart((0.0, 0.25, 1.0))) == ["50,202 263,159 476,30"]


def test_a_missing_value_is_a_gap() -> None:
    svg = chart((0.0, 1.0, None, 1.0, 0.0))
    assert points(svg) == ["50,202 156.5,30", "369.5,30 476,202"]
    assert "<circle" not in svg


def test_a_value_between_two_gaps_is_a_dot() -> None:
    svg = chart((0.0, None, 1.0, None, None))
    assert points(svg) == []
    assert re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg) == [("50", "202"), ("263", "30")]


def test_a_chart_without_a_number_has_axes_all_the_same() -> None:
    assert "<svg" in chart((None, None)) and "<polyline" not in chart((None, None))


def test_one_round_alone_stands_in_the_middle() -> None:
    # A constant gets an axis around it: 0.5 -> 0.45 to 0.55.
    assert re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', chart((0.5,))) == [("263", "116")]


def test_the_band_is_a_polygon_there_and_back() -> None:
    # Axis from 0 to 1, bands 0.5 +- 0.5: the whole height, up at 30 and down at 202.
    series = (Series("line", (0.5, 0.5), palette(0), band=(0.5, 0.5)),)
    svg = chart((0.5, 0.5), series=series, include=(0.0, 1.0))
    assert points(svg, "polygon") == ["50,30 476,30 476,202 50,202"]


ANY = st.floats(allow_nan=False, allow_infinity=False)


@example([1.7e308, -1.7e308], 1e308)
@example([1e-320, 0.0], 0.0)
@example([1e16, 1e16 + 2], 1e-300)
@example([50.0, 93.1], 0.1)
@given(st.lists(ANY, min_size=1, max_size=4), ANY)
def test_any_finite_numbers_can_be_drawn(values: list[float], band: float) -> None:
    series = (Series("line", tuple(values), palette(0), band=(abs(band),) * len(values), label="a"),)
    for bounds in ((-math.inf, math.inf), (0.0, math.inf), (0.0, 1.0)):
        for percent in (False, True):
            assert "<svg" in chart(tuple(values), series=series, bounds=bounds, percent=percent)
    ticks = y_ticks(min(values), max(values), (-math.inf, math.inf))
    assert 2 <= len(ticks) <= 8 and all(a < b < math.inf for a, b in pairwise(ticks))


def test_a_label_stands_right_of_the_plot_and_is_shortened() -> None:
    series = (Series("n" * 50, (0.0, 1.0), palette(0), label="n" * 50),)
    svg = chart((0.0, 1.0), series=series)
    assert f'class="label"><title>{"n" * 50}</title>{"n" * 17}…</text>' in svg
    # Room for 18 characters: 490 - 22 - 18 * 6.9 = 343.8
    assert points(svg)[0] == "50,202 343.8,30"


def test_wide_bands_of_the_first_half_do_not_stretch_the_axis() -> None:
    # Axis from 0 to 1 as without bands; the first band, 10 wide, runs out of the frame and is clipped.
    series = (Series("line", (0.0, 0.5, 1.0), palette(0), band=(10.0, 0.0, 0.0)),)
    assert points(chart((0.0, 0.5, 1.0), series=series)) == ["50,202 263,116 476,30"]


def test_a_band_stretches_the_axis_by_one_and_a_half_spreads_of_the_lines_at_most() -> None:
    # Lines from 0 to 2, a last band of 100: the axis goes from -3 to 5, in which 0 and 2 stand at 3/8 and 5/8.
    series = (Series("line", (0.0, 2.0), palette(0), band=(0.0, 100.0)),)
    ends = points(chart((0.0, 2.0), series=series))[0].split()
    low, high = (202 - float(point.split(",")[1]) for point in ends)
    assert (high - low) / 172 == pytest.approx(2 / 8, abs=0.08)  # ticks may widen the axis a little


def test_a_series_that_ends_early_has_a_dotted_tail_to_its_label() -> None:
    # A label of one character: the plot ends at 490 - 22 - 6.9 = 461.1; the series at its middle, 255.55.
    series = (Series("a", (0.0, 1.0, None), palette(0), label="a"),)
    tail = r'<polyline points="([^"]*)" class="tail">'
    assert re.findall(tail, chart((0.0, 1.0, None), series=series)) == ["261.6,30 461.1,30"]
    whole = (Series("a", (0.0, 1.0), palette(0), label="a"),)
    assert re.findall(tail, chart((0.0, 1.0), series=whole)) == []


def test_a_chart_says_what_it_shows() -> None:
    svg = chart((0.0, 1.0))
    assert 'role="img" aria-labelledby="c-title c-desc"' in svg
    assert '<title id="c-title">T</title><desc id="c-desc">D</desc>' in svg


@pytest.mark.parametrize(
    ("span", "count", "step"), [(1, 5, 0.2), (1, 2, 0.5), (9, 5, 2), (99, 10, 10), (0.07, 5, 0.02)]
)
def test_steps_are_nice(span: float, count: int, step: float) -> None:
    assert nice_step(span, count) == pytest.approx(step)


@given(NUMBER, NUMBER)
def test_ticks_enclose_the_values_and_are_few(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    ticks = y_ticks(low, high, (float("-inf"), float("inf")))
    slack = 1e-8 * max(abs(low), abs(high), ticks[1] - ticks[0])
    assert ticks[0] <= low + slack and high - slack <= ticks[-1]
    assert 2 <= len(ticks) <= 8


def test_an_accuracy_of_one_throughout_has_no_axis_beyond_one() -> None:
    assert y_ticks(1.0, 1.0, (0.0, 1.0))[-1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("first", "last", "ticks"),
    [
        (1, 1, [1]),
        (1, 5, [1, 2, 3, 4, 5]),
        (1, 100, [1, *range(10, 101, 10)]),
        (8, 30, [10, 15, 20, 25, 30]),
        (6, 30, [6, 10, 15, 20, 25, 30]),
    ],
)
def test_rounds_on_the_axis_are_round(first: int, last: int, ticks: list[int]) -> None:
    assert x_ticks(first, last) == ticks


def test_ticks_have_the_decimals_of_their_step() -> None:
    assert tick_text(0.4, 0.2, True) == "40\u00a0%"
    assert tick_text(0.925, 0.005, True) == "92.5\u00a0%"
    assert tick_text(0.30000000000000004, 0.1, False) == "0.3"
    assert tick_text(20.0, 10.0, False) == "20"
    assert tick_text(1.5e30, 5e29, False) == "1.5e+30"


def test_labels_move_apart_around_their_middle() -> None:
    assert apart([100, 100, 10], 14, 0, 200) == [93, 107, 10]


def test_labels_stay_inside() -> None:
    assert apart([0, 0, 199], 14, 0, 200) == [0, 14, 199]
    assert apart([199, 200], 14, 0, 200) == [186, 200]


@given(st.lists(st.floats(0, 300), min_size=1, max_size=15))
def test_labels_never_overlap_and_keep_their_order(positions: list[float]) -> None:
    moved = apart(positions, 14, 0, 300)
    ordered = [place for _, place in sorted(zip(positions, moved, strict=True))]
    assert all(second - first >= 14 - 1e-9 for first, second in pairwise(ordered))
    assert min(moved) >= 0 and max(moved) <= 300 + 1e-9


@given(NUMBER, NUMBER)
def test_a_scale_maps_its_ends(low: float, high: float) -> None:
    assume(low != high)
    assert (scale(low, high, 10, 20)(low), scale(low, high, 10, 20)(high)) == (10, pytest.approx(20))


def test_the_first_32_lines_differ() -> None:
    assert len({palette(index) for index in range(32)}) == 32


def test_text_is_escaped_and_markup_is_not() -> None:
    assert el("b", "<i>", Html("<i>"), title='"&') == '<b title="&quot;&amp;">&lt;i&gt;<i></b>'


def test_marks_that_hide_text_become_visible() -> None:
    assert el("b", "a\u202eb\x00c\nd") == "<b>a\ufffdb\ufffdc d</b>"
