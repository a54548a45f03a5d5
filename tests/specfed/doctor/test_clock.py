"""Two clocks compared, and one on its own."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfed.doctor import clock

EARLY, LATE = 5.0, 305.0


@given(st.floats(min_value=-86_000, max_value=86_000))
def test_a_difference_is_found_from_what_a_server_takes(ahead: float) -> None:
    def takes(shift: float) -> bool:
        behind = ahead - shift  # the server's time less that of the request
        return -EARLY < behind < LATE

    found = clock.difference(takes, EARLY, LATE)
    assert found is not None and abs(found - ahead) <= 0.5


def test_what_is_further_away_than_a_day_is_not_found() -> None:
    asked: list[float] = []
    assert clock.difference(lambda shift: bool(asked.append(shift)), EARLY, LATE) is None
    assert min(asked) < -clock.DAY and max(asked) > clock.DAY


def test_a_server_that_is_slow_to_answer_is_not_asked_for_ever() -> None:
    asked: list[float] = []
    assert clock.difference(lambda shift: bool(asked.append(shift)), EARLY, LATE, search=0.0) is None
    assert len(asked) <= 1


@pytest.mark.parametrize(
    ("ahead", "state", "words"),
    [
        (0.0, "ok", "agree"),
        (1.9, "ok", "agree"),
        (30.0, "warning", "is 30 s behind the server's"),
        (-4.0, "warning", "is 4 s ahead of the server's"),
        (-5.5, "problem", "is 6 s ahead of the server's"),
        (306.0, "problem", "is 306 s behind the server's"),
        (None, "problem", "more than a day"),
    ],
)
def test_what_a_difference_means(ahead: float | None, state: str, words: str) -> None:
    found = clock.compared(ahead, EARLY, LATE)
    assert found.state == state and words in found.text
    assert bool(found.fix) == (state != "ok")


def test_a_file_of_the_future_tells_of_a_slow_clock(tmp_path: Path) -> None:
    file, missing = tmp_path / "ca.crt", tmp_path / "missing"
    file.touch()
    assert clock.own([file, missing]).state == "ok"
    later = datetime.now(UTC) + timedelta(hours=2)
    os.utime(file, (later.timestamp(), later.timestamp()))
    found = clock.own([missing, file])
    assert found.state == "warning" and str(file) in found.text and "NTP" in found.fix
    assert clock.own([file], later).state == "ok"
