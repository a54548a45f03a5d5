"""What a check found, and how checks are kept from raising or hanging."""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from common.errors import ConfigError, SpecfedError

LATE = "late check"  # name of the threads of ``within``

State = Literal["ok", "warning", "problem"]
T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """What one check found. ``error`` is the class of a problem, whose exit code the command leaves with."""

    name: str
    state: State
    text: str
    fix: str = ""
    error: type[SpecfedError] | None = None

    def as_dict(self) -> dict[str, str | int]:
        """For machines."""
        code = self.error.exit_code if self.error else 0
        return {
            "name": self.name,
            "state": self.state,
            "text": self.text,
            "fix": self.fix,
            "exit-code": code,
        }


def ok(name: str, text: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", text)


def warning(name: str, text: str, fix: str) -> Finding:
    """Something to look at; the node or server starts all the same."""
    return Finding(name, "warning", text, fix)


def problem(name: str, text: str, fix: str, error: type[SpecfedError]) -> Finding:
    """Something that must be mended."""
    return Finding(name, "problem", text, fix, error)


def at_most_warning(finding: Finding) -> Finding:
    """The finding, as a warning if it is a problem: for what a node or server starts without."""
    return replace(finding, state="warning", error=None) if finding.state == "problem" else finding


def exit_code(findings: Sequence[Finding]) -> int:
    """That of the first problem's class; 0 without a problem."""
    return next((finding.error.exit_code for finding in findings if finding.error), 0)


def guarded(name: str, fix: str, check: Callable[[], Finding]) -> Finding:
    """What ``check`` found; a problem if it raised one of our errors, or met a file that it may not read."""
    try:
        return check()
    except SpecfedError as error:
        return problem(name, str(error), fix, type(error))
    except PermissionError as error:
        return problem(name, str(error), fix, ConfigError)


def within(seconds: float, call: Callable[[], T]) -> T:
    """What ``call`` returns or raises. Raises TimeoutError if it takes longer; it is left to itself then."""
    results: list[T] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            results.append(call())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work, name=LATE, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"not done within {seconds:g} seconds")
    return results[0]


def leave_late_checks(code: int) -> None:
    """End this process with ``code`` if a check that took too long is still at work; else return.

    Python's own end would meet it in the middle of its work: what imports or computes in C++ then crashes.
    """
    if any(thread.name == LATE for thread in threading.enumerate()):
        sys.stdout.flush()
        os._exit(code)
