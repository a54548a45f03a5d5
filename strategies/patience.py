"""How long Flower waits for a reply that has been announced but has not arrived whole.

A node tells the server of its reply first and sends the tensors after. If it vanishes in between, Flower's
grid keeps asking for them for minutes, whatever deadline the round has. That wait is a default argument
inside Flower, so this is the one place outside of the launcher that touches its internals: it must hold in
every server process, also in one that specfed has not started. Without what it knows it changes nothing.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PLACE = "flwr.supercore.inflatable.inflatable_utils"
LONGEST_PAUSE = 1.0  # seconds between two questions for the same tensor


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Meanwhile Flower gives up on what is missing of a reply after ``seconds``, and answers for it with an
    error; what is there comes through. Never waits longer than Flower itself would."""
    waits = _waits()
    before = dict(waits)
    if waits:
        waits["max_time"] = min(max(seconds, 0.0), waits["max_time"])
        waits["backoff_cap"] = min(LONGEST_PAUSE, waits["backoff_cap"])
    try:
        yield
    finally:
        waits.update(before)


def _waits() -> dict[str, Any]:
    """The default arguments of Flower's wait, to be changed in place; nothing if it has others."""
    try:
        pull = importlib.import_module(PLACE).pull_objects
    except (ImportError, AttributeError):
        return {}
    defaults: dict[str, Any] = getattr(pull, "__kwdefaults__", None) or {}
    return defaults if defaults.keys() >= {"max_time", "backoff_cap"} else {}
