"""How far two clocks are apart, and signs that this machine's own is wrong."""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from common.errors import UnreachableError
from specfed.doctor.finding import Finding, ok, problem, warning

DAY = 86_400.0
NOTICE = 2.0  # seconds
PRECISION = 0.25
SEARCH_SECONDS = 5.0
SET = "set this machine's clock by NTP ('timedatectl set-ntp true'), and ask the coordinator to do the same"


def difference(
    takes: Callable[[float], bool], early: float, late: float, search: float = SEARCH_SECONDS
) -> float | None:
    """Seconds that a server's clock is ahead of ours; None if that cannot be found within ``search`` seconds.

    ``takes`` tells whether it takes a time so many seconds from our now: one less than ``early`` ahead of
    its own and less than ``late`` behind it. Up to a day is searched; it is right to half a second.
    """
    deadline = time.monotonic() + search
    low = None
    for shift in _outwards(early + late - 2 * PRECISION):
        if time.monotonic() > deadline:
            return None
        if takes(shift):
            low = shift
            break
    if low is None:
        return None
    high = low + early + late
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if takes(middle) else (low, middle)
    return (low + high) / 2 - early


def _outwards(step: float) -> Iterator[float]:
    yield 0.0
    for number in range(1, int(DAY / step) + 2):
        yield number * step
        yield -number * step


def compared(ahead: float | None, early: float, late: float) -> Finding:
    """What a difference means to a server that takes times up to ``late`` behind its own, ``early`` ahead."""
    if ahead is None:
        text = "the server refuses this machine's time, which is more than a day from its own"
        return problem("clock", text, SET, UnreachableError)
    apart = f"this machine's clock is {abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead of'} the server's"
    if not -early < ahead < late:
        return problem("clock", f"{apart}, and the server refuses its requests", SET, UnreachableError)
    if abs(ahead) > NOTICE:
        return warning("clock", f"{apart}; a node that is {early:.0f} s ahead is refused", SET)
    return ok("clock", f"this machine and the server agree within {NOTICE:.0f} s")


def own(files: Sequence[Path], now: datetime | None = None) -> Finding:
    """Whether a file of this machine was written later than its clock says it is now.

    That a clock is slow shows only so, without anybody else's; that it is fast does not show at all.
    """
    moment = (now or datetime.now(UTC)).timestamp()
    times = [(file, written) for file in files if (written := _written(file)) is not None]
    for file, written in times:
        if written > moment + 60:
            when = datetime.fromtimestamp(written, UTC)
            text = f"{file} was written on {when:%Y-%m-%d %H:%M} UTC, still to come by this machine's clock"
            return warning("own clock", text, SET)
    today = datetime.fromtimestamp(moment, UTC)
    return ok(
        "own clock",
        f"{today:%Y-%m-%d %H:%M} UTC; none of the {len(times)} files looked at is of a later time",
    )


def _written(file: Path) -> float | None:
    """When a file was written; None for one that is not there or in a closed folder, as other checks say."""
    try:
        return file.stat().st_mtime
    except OSError:
        return None
