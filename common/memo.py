"""What a process that answers many messages keeps in memory between them: nothing, unless it asks for it.

Flower starts a process for each message, where keeping a value only costs memory. The in-process runner
answers all nodes' messages in one process, which would read the same files and draw the same first weights
each time. Nothing is written to a disk, and all is forgotten when ``keeping`` ends.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

ROOM = 2**28  # bytes

T = TypeVar("T")


@dataclass
class _Kept:
    """First come, first kept: nodes take turns, so that what was not used for longest is asked for next."""

    values: dict[Hashable, Any] = field(default_factory=dict)
    room: float = ROOM


_kept: ContextVar[_Kept | None] = ContextVar("kept", default=None)


@contextmanager
def keeping() -> Iterator[None]:
    """Let this thread keep values meanwhile."""
    token = _kept.set(_Kept())
    try:
        yield
    finally:
        _kept.reset(token)


def once(
    key: Hashable, make: Callable[[], T], size: Callable[[T], float], copy: Callable[[T], T] = lambda x: x
) -> T:
    """What ``make`` returns, made once for this key where values are kept, else each time.

    ``size`` tells a value's bytes; what finds no room, or is infinitely large, is not kept. Callers
    that change the value pass ``copy``: each of them, the first too, then has one of its own.
    """
    kept = _kept.get()
    if kept is None:
        return make()
    if key not in kept.values:
        value = make()
        bytes_ = size(value)
        if bytes_ > kept.room:
            return value
        kept.room -= bytes_
        kept.values[key] = value
    value = kept.values[key]
    return copy(value)
