"""From a run's end to the exit code."""

import pytest

from common.errors import RunFailed
from common.ledger import End
from specfed.watch import exit_code


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
