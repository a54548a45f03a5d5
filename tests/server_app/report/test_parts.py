"""Times, stretches of rounds and long lists in words."""

from server_app.report.parts import capped, duration, ranges


def test_times_are_readable() -> None:
    shown = [duration(seconds).replace("\u00a0", " ") for seconds in (0.04, 9.94, 71, 185, 7620, 360000)]
    assert shown == ["0.0 s", "9.9 s", "71 s", "3 min 05 s", "2 h 07 min", "100 h 00 min"]


def test_stretches_and_caps() -> None:
    assert ranges([3, 4, 5, 8, 10, 11]) == "3–5, 8, 10–11"
    assert ranges([]) == ""
    assert capped(["a", "b", "c"], 3) == "a, b, c"
    assert capped(["a", "b", "c"], 2) == "a, b and 1 more"
