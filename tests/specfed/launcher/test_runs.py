"""Which run is meant."""

import subprocess
import sys
from typing import Any

import pytest

from common.errors import ConfigError
from specfed.launcher import runs
from specfed.launcher.runs import RunStatus, log_lines, mark_of, pick


def known(*ids: int) -> list[RunStatus]:
    return [RunStatus(str(i), "finished:completed", "", "2026-12-01 14:03:11Z", 3.0) for i in ids]


FIRST, SECOND, TWIN = 0x1234_0000_7F3A, 0x1234_0000_0C01, 0x9999_0000_7F3A


def test_a_mark_is_the_end_of_flowers_id() -> None:
    assert [mark_of(str(i)) for i in (FIRST, SECOND, 5)] == ["7f3a", "0c01", "0005"]
    assert known(FIRST)[0].word == "completed"


@pytest.mark.parametrize("text", ["7f3a", "2026-12-01-my-run-7f3a", str(FIRST)])
def test_a_run_is_found_by_mark_folder_and_id(text: str) -> None:
    assert pick(known(SECOND, FIRST), text).id == str(FIRST)


def test_the_latest_is_meant_if_none_is_named() -> None:
    assert pick(known(SECOND, FIRST), "").id == str(SECOND)


@pytest.mark.parametrize(
    ("ids", "text", "says"),
    [
        ([], "", "the server has had no run yet"),
        ([FIRST], "7f3b", 'the server knows no run "7f3b". Did you mean "7f3a"?'),
        ([FIRST], "x", "the server knows no run \"x\". 'specfed status' lists them."),
        ([FIRST, TWIN], "7f3a", f'"7f3a" is the mark of 2 runs; take one of their ids: {FIRST}, {TWIN}'),
    ],
)
def test_what_names_no_run_or_several_is_refused(ids: list[int], text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        pick(known(*ids), text)
    assert str(refused.value) == says


def test_of_runs_with_one_mark_each_is_found_by_its_id() -> None:
    assert pick(known(FIRST, TWIN), str(TWIN)).id == str(TWIN)


class Logs:
    """A server whose log of a run breaks off, as if it were over."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)

    def flwr(self, *arguments: str, output: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-IS", "-c", f"print({self.texts.pop(0)!r})"], stdout=output)


def test_a_log_that_breaks_off_is_asked_for_again_until_the_run_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = iter(["running", "running", "finished:completed"])
    monkeypatch.setattr(runs, "status", lambda control, run: RunStatus(run, next(states), "", "", 0.0))
    logs: Any = Logs("one", "one\ntwo", "one\ntwo\nthree")
    assert [line.strip() for line in log_lines(logs, "1")] == ["one", "two", "three"]
