"""What each client brought to a run: one row for each client, from the ledger alone."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from common.ledger import ClientRecord, Record
from server_app.report.run_view import RunView, natural, view


@dataclass(frozen=True)
class Contribution:
    """One client over a whole run. ``None`` means: never measured.

    ``score``, ``std`` and ``final_weight`` are the last ones that the client got. ``mean_weight`` and the
    means of the signals are over the rounds in which it got one, the weight's over the last half of the
    run's rounds (rounds 6 to 10 of ten, 2 and 3 of three).
    """

    client: str
    examples: int | None  # what the node last said; nobody checked it
    score: float | None
    std: float | None
    mean_weight: float | None
    final_weight: float | None
    signals: Mapping[str, float | None]  # mean of each signal, the same names in all rows
    rounds: int  # accepted replies
    flagged: int  # rounds in which any test raised a flag
    quarantined: int
    errors: int
    missing: int


def contribution_table(records: Iterable[Record]) -> list[Contribution]:
    """Rows by score, highest first; clients without a score follow by mean weight, then by name.

    Raises DataError if the records hold no header.
    """
    return contributions(view(records))


def contributions(run: RunView) -> list[Contribution]:
    """The same rows of a ledger that is sorted already."""
    signals = sorted({name for record in run.clients for name in record.signals})
    half = run.numbers[len(run.numbers) // 2 :]
    examples = {node.name: node.examples for node in run.nodes}
    by_client: dict[str, list[ClientRecord]] = {name: [] for name in run.names}
    for record in run.clients:
        by_client[record.client].append(record)
    rows = [
        _row(name, records, signals, half[0] if half else 0, examples.get(name))
        for name, records in by_client.items()
    ]
    return sorted(rows, key=lambda r: (_descending(r.score), _descending(r.mean_weight), natural(r.client)))


def _row(
    name: str, records: list[ClientRecord], signals: list[str], half: int, examples: int | None
) -> Contribution:
    counts = [record.examples for record in records if record.examples is not None]
    scored = next((record for record in reversed(records) if record.score is not None), None)
    weights = [(record.round, record.weight) for record in records if record.weight is not None]
    status = [record.status for record in records]
    return Contribution(
        client=name,
        examples=counts[-1] if counts else examples,
        score=scored.score if scored else None,
        std=scored.score_std if scored else None,
        mean_weight=_mean([weight for number, weight in weights if number >= half]),
        final_weight=weights[-1][1] if weights else None,
        signals={signal: _mean([record.signals.get(signal) for record in records]) for signal in signals},
        rounds=status.count("accepted"),
        flagged=sum(bool(record.flags) for record in records),
        quarantined=status.count("quarantined"),
        errors=status.count("error"),
        missing=status.count("missing"),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None


def _descending(value: float | None) -> float:
    return math.inf if value is None else -value
