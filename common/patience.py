"""How long Flower waits for a message that has been announced but has not arrived whole.

Whoever sends a message tells of it first and sends the tensors after. Whoever asks for them in between is
told to ask again: Flower does after one second, then after two, four, eight. In a federation of small
models that is most of a round. And if the sender vanished, Flower's grid keeps asking for minutes, whatever
deadline the round has.

Those waits are default arguments inside Flower, so this is the one place outside of the launcher that
touches its internals: they must hold in every server process, also in one that specfed has not started.
Without what it knows it changes nothing.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PLACE = "flwr.supercore.inflatable.inflatable_utils"
FIRST_PAUSE = 0.05  # seconds between two questions for the same tensor; doubled each time, by Flower
LONGEST_PAUSE = 1.0


def ask_soon() -> bool:
    """From now on this process asks soon again for what has not arrived. False, and nothing changed, for a
    Flower without that wait."""
    waits = _waits()
    if waits:
        waits["initial_backoff"] = min(FIRST_PAUSE, waits["initial_backoff"])
    return bool(waits)


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Meanwhile Flower gives up on what is missing of a reply after ``seconds``, and answers for it with an
    error; what is there comes through. Asks soon again, and never waits longer than Flower itself would."""
    waits = _waits()
    before = dict(waits)
    if waits:
        ask_soon()
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
    return defaults if defaults.keys() >= {"max_time", "initial_backoff", "backoff_cap"} else {}
