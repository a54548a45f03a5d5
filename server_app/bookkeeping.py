"""From what happened to what the ledger says of it. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from common.bands import BANDS
from common.errors import SpecfedError
from common.ledger import ClientRecord, Flag, Outcome, Record, RoundRecord, Suspect
from common.params import norm
from common.text import one_line
from strategies.flower import RoundResult, Verdict
from strategies.recipe import Outcome as RecipeOutcome
from strategies.round import Reply


def client_records(result: RoundResult) -> list[ClientRecord]:
    """A round's lines, one a client, in the order of their names."""
    position = {reply.client: i for i, reply in enumerate(result.accepted)}
    return [_client_record(result, verdict, position) for verdict in result.verdicts]


def _client_record(result: RoundResult, verdict: Verdict, position: dict[str, int]) -> ClientRecord:
    record = ClientRecord(
        round=result.number, client=verdict.client, status=verdict.status, reason=verdict.reason
    )
    if verdict.reply is None:
        return record
    said = _what_it_said(verdict.reply)
    if result.outcome is None:
        return record.model_copy(update=said)
    flags = result.flags.get(verdict.client, ())
    found = _what_was_found(result.outcome, position[verdict.client])
    return record.model_copy(update={**said, **found, "flags": flags})


def _what_it_said(reply: Reply) -> dict[str, object]:
    said = reply.metrics
    return {
        "examples": reply.examples,
        "steps": int(said["steps"]) if math.isfinite(said.get("steps", math.nan)) else None,
        "train_loss": said.get("train-loss"),
        "loss_before": said.get("loss-before"),
        "accuracy_before": said.get("accuracy-before"),
        "seconds": said.get("seconds"),
        "update_norm": norm(reply.update),
        "energy_removed": _believable(reply.series.get("energy-removed", ()), len(reply.update), 1.0),
        "band_energies": _believable(reply.series.get("band-energies", ()), BANDS, math.inf),
    }


def _believable(numbers: Sequence[float], most: int, limit: float) -> tuple[float, ...]:
    """The numbers, if they are at most ``most`` finite ones in [0, limit]; a node may send anything."""
    fit = len(numbers) <= most and all(0 <= x <= limit and math.isfinite(x) for x in numbers)
    return tuple(numbers) if fit else ()


def _what_was_found(outcome: RecipeOutcome, i: int) -> dict[str, object]:
    scores = outcome.scores
    return {
        "signals": {name: float(values[i]) for name, values in outcome.signals.items()},
        "score": None if scores is None else float(scores.values[i]),
        "score_std": None if scores is None or scores.std is None else float(scores.std[i]),
        "weight": float(outcome.weights[i]),
    }


def status_of(error: BaseException | None, records: Iterable[Record], doubt: str = "") -> Outcome:
    """How a run ended: failed or stopped by an error, degraded if anything was missing on the way or if there
    is a doubt about its last model."""
    if isinstance(error, Exception):
        return "failed"
    if error is not None:
        return "stopped"
    whole = not doubt and all(
        record.status == "accepted" if isinstance(record, ClientRecord) else record.moved
        for record in records
        if isinstance(record, ClientRecord | RoundRecord)
    )
    return "completed" if whole else "completed-degraded"


def reason_of(error: BaseException | None, doubt: str = "") -> str:
    """The end line's reason, in one sentence; for a run that came to its end the doubt about it, if any."""
    if error is None:
        return doubt
    if isinstance(error, SpecfedError):
        return str(error)
    if isinstance(error, Exception):
        return one_line(f"unexpected {type(error).__name__}: {error}")
    return "stopped before its last round"


def suspects_in(records: Iterable[Record]) -> tuple[Suspect, ...]:
    """The clients that were flagged in any round, with each test's latest evidence."""
    flagged: dict[str, dict[str, list[tuple[int, Flag]]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if isinstance(record, ClientRecord):
            for flag in record.flags:
                flagged[record.client][flag.test].append((record.round, flag))
    return tuple(
        Suspect(client=client, text="; ".join(map(_evidence, tests.values())))
        for client, tests in sorted(flagged.items())
    )


def _evidence(found: list[tuple[int, Flag]]) -> str:
    last_round, last = found[-1]
    rounds = f"{len(found)} rounds" if len(found) > 1 else "1 round"
    return f"{last.text}; flagged in {rounds}, the last one {last_round}"
