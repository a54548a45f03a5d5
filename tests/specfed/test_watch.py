"""From a run's end to the exit code."""

from collections.abc import Iterator

import pytest

from common.errors import RunFailed
from common.ledger import End, Record
from specfed.watch import exit_code, show


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        ("completed", "", 0),
        ("completed-degraded", "", 0),
        ("failed", "DataError", 3),
        ("failed", "AttributeError", 1),
        ("failed", "", 7),
        ("stopped", "", 130),
    ],
)
def test_the_exit_code_says_how_a_run_ended(status: str, error: str, code: int) -> None:
    end = End.model_validate({"status": status, "error": error, "rounds": 1, "seconds": 1.0})
    assert exit_code(end, lambda: "") == code


def test_a_run_without_an_end_failed() -> None:
    with pytest.raises(RunFailed, match="without a result: the process is gone"):
        exit_code(None, lambda: "the process is gone")


def failing(*records: Record) -> Iterator[Record]:
    """Some records, and then what ended the run."""
    yield from records
    raise RunFailed("the nodes are gone")


def test_what_the_end_line_has_told_is_not_told_again(capsys: pytest.CaptureFixture[str]) -> None:
    end = End(status="failed", reason="the nodes are gone", error="RunFailed", rounds=1, seconds=1.0)
    assert show(failing(end)) == end
    assert capsys.readouterr().out.count("the nodes are gone") == 1


def test_an_error_before_the_end_line_is_raised() -> None:
    with pytest.raises(RunFailed, match="the nodes are gone"):
        show(failing())
