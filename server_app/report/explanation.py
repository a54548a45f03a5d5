"""Why a client got the weight it got in one round, in words and from the ledger alone."""

from collections.abc import Iterator, Sequence
from statistics import median

from common.config import Value
from common.errors import ConfigError, nearest
from common.ledger import ClientRecord, RoundRecord
from common.traits import UNWEIGHED, gives_weights, guards_at_work
from server_app.report.parts import in_digits, plus_minus
from server_app.report.run_view import RunView

LABEL = 12  # characters before the words of a line


def explain(run: RunView, number: int | None = None, client: str = "") -> Iterator[str]:
    """Lines of text on one client in one round, or on all of them; the last round if none is given.

    Raises ConfigError for a round or a client that the ledger does not know.
    """
    if not run.numbers:
        raise ConfigError(f"run {run.header.run_id} has no round yet")
    chosen = run.numbers[-1] if number is None else number
    if chosen not in run.numbers:
        raise ConfigError(
            f"--round takes one of the run's rounds, {run.numbers[0]} to {run.numbers[-1]}; got {number}"
        )
    if client and client not in run.names:
        known = nearest(client, run.names) or f"They are {', '.join(run.names)}."
        raise ConfigError(f'no client "{client}" in run {run.header.run_id}. {known}')
    asked = {record.client: record for record in run.clients if record.round == chosen}
    for name in [client] if client else [n for n in run.names if n in asked]:
        if name not in asked:
            yield f"{name} was not asked in round {chosen}."
        else:
            yield from _one(run, asked[name], tuple(asked.values()))
        yield ""
    yield from _round(run, chosen)


def _one(run: RunView, record: ClientRecord, asked: Sequence[ClientRecord]) -> Iterator[str]:
    reason = f": {record.reason}" if record.reason else ""
    yield f"{record.client} in round {record.round}: {record.status}{reason}"
    if record.examples is None:
        return
    yield _line("it says", _said(record))
    accepted = [other for other in asked if other.examples is not None]
    yield from _measured(record, accepted)
    if record.score is not None:
        before = [r.score for r in run.clients if r.client == record.client and r.round < record.round]
        last = next((score for score in reversed(before) if score is not None), None)
        since = f", {in_digits(last)} the last time" if last is not None else ", its first one"
        yield _line("score", plus_minus(record.score, record.score_std) + since)
    if record.weight is not None:
        yield _line("weight", f"{in_digits(record.weight)}, an equal one is {1 / len(accepted):.3f}")
    for flag in record.flags:
        yield _line("flag", f"{flag.test}: {flag.text}")


def _said(record: ClientRecord) -> str:
    parts = [f"{record.examples:,} examples"]
    parts += [f"{record.steps:,} steps"] if record.steps is not None else []
    parts += [f"{record.seconds:.1f} s"] if record.seconds is not None else []
    losses = {"before": record.loss_before, "in training": record.train_loss}
    told = [f"{in_digits(loss)} {when}" for when, loss in losses.items() if loss is not None]
    return ", ".join(parts) + (f"; loss {', '.join(told)}" if told else "")


def _measured(record: ClientRecord, accepted: Sequence[ClientRecord]) -> Iterator[str]:
    """The update's length and the signals, each among those of the others."""
    lengths = [other.update_norm for other in accepted if other.update_norm is not None]
    if record.update_norm is not None:
        typical = median(lengths)
        times = f", {record.update_norm / typical:.2f} times the median" if typical else ""
        yield _line("update", f"length {in_digits(record.update_norm)}{times}")
    for name, value in record.signals.items():
        others = [v for other in accepted if (v := other.signals.get(name)) is not None]
        if value is not None:
            place = 1 + sum(other > value for other in others)
            spread = f"{in_digits(min(others))} to {in_digits(max(others))}"
            yield _line(name, f"{in_digits(value)}, place {place} of {len(others)} ({spread})")


def _round(run: RunView, number: int) -> Iterator[str]:
    """What holds for all clients of the round."""
    config = run.header.config
    record = next((r for r in run.rounds if r.round == number), None)
    yield f"round {number}: {_weighing(config)}"
    yield from _trust(record)
    if record is not None and record.reason:
        yield _line("note", record.reason)


def _weighing(config: dict[str, Value]) -> str:
    weighting, mode = config.get("weighting"), config.get("contribution")
    used = gives_weights(mode, weighting, config.get("base-weighting"))
    parts = [f"weights by {used}"]
    if used != weighting:
        parts.append(f"{weighting} {mode}")
    if config.get("aggregation") in UNWEIGHED:
        parts.append(f"aggregation {config['aggregation']}, which takes no weights")
    parts.append(f"guards {guards_at_work(config.get('guards', 'off'), mode, weighting)}")
    return "; ".join(parts)


def _trust(record: RoundRecord | None) -> Iterator[str]:
    noise = {name: v for name, v in (record.noise if record else {}).items() if v is not None}
    if noise:
        told = ", ".join(f"{name} {in_digits(variance)}" for name, variance in noise.items())
        yield _line("trust", f"variance given to {told}; the smaller, the more the signal counts")


def _line(label: str, words: str) -> str:
    return f"  {label:<{LABEL}}{words}"
