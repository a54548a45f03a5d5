"""How far a run is, and its records: written into its folder, and told to those who watch its log."""

import logging
import time

from common.ledger import LEDGER, LOG_MARK, DriftRecord, End, Header, Record, RoundRecord, read
from common.params import Arrays
from server_app.bookkeeping import client_records, reason_of, status_of, suspects_in
from server_app.evaluation import Score
from server_app.folder import RunFolder
from server_app.report.writing import write_report
from strategies.flower import RoundResult, StrategyState

log = logging.getLogger("flwr")


def tell(record: Record) -> None:
    """Tell a record to those who watch the run's log."""
    log.info("%s%s", LOG_MARK, record.model_dump_json(by_alias=True))


class Books:
    """A run's books, which go on where those of its past end."""

    def __init__(self, folder: RunFolder) -> None:
        past = folder.past
        self.folder = folder
        self.rounds_done = past.round if past else 0
        self.moved = past is not None and past.moved  # whether any round moved the model
        self.score = past.score if past else Score()  # the latest model's
        self._started = time.monotonic() - (past.elapsed if past else 0.0)

    def elapsed(self) -> float:
        """Seconds that the run has taken, those before it went on included."""
        return time.monotonic() - self._started

    def write(self, record: Record) -> None:
        """Write a record and tell it. Raises RunFailed if it cannot be written."""
        self.folder.write(record)
        tell(record)

    def after_round(
        self, result: RoundResult, rounds: int, score: Score, drift: DriftRecord | None = None
    ) -> None:
        """Write what a round of ``rounds`` was; ``score`` is that of the model that it left."""
        outcome = result.outcome
        self.rounds_done, self.score = result.number, score
        self.moved |= outcome is not None
        for line in client_records(result):
            self.write(line)
        if drift is not None:
            self.write(drift)
            bands = {str(m): value for m, value in enumerate(drift.dist)}
            self.folder.record_values(result.number, "drift-band", bands)
        record = RoundRecord(
            round=result.number,
            rounds=rounds,
            sampled=len(result.verdicts),
            accepted=len(result.accepted),
            moved=outcome is not None,
            reason="; ".join(text for text in (result.reason, score.note) if text),
            accuracy=score.accuracy,
            loss=score.loss,
            evaluated_on=score.on,
            noise=dict(outcome.scores.noise) if outcome and outcome.scores else {},
            seconds=result.seconds,
            elapsed=self.elapsed(),
        )
        self.write(record)
        self.folder.record(record)
        if outcome is not None:
            clients = [reply.client for reply in result.accepted]
            weights = dict(zip(clients, outcome.weights.tolist(), strict=True))
            self.folder.record_values(result.number, "weight", weights)

    def save(self, arrays: Arrays, state: StrategyState, keep: int) -> None:
        """A checkpoint of the round that was done last."""
        self.folder.save_round(self.rounds_done, arrays, state, self.elapsed(), keep)

    def close(self, error: BaseException | None) -> None:
        """Write the end line and the report."""
        records = list(read(self.folder.path / LEDGER))
        end = End(
            status=status_of(error, records, self.score.doubt),
            reason=reason_of(error, self.score.doubt),
            error="" if error is None else type(error).__name__,
            rounds=self.rounds_done,
            seconds=self.elapsed(),
            accuracy=self.score.accuracy,
            loss=self.score.loss,
            suspects=suspects_in(records),
        )
        self.write(end)
        if not any(isinstance(r, Header) for r in records):
            return
        try:
            write_report(self.folder.path)
        except Exception as problem:  # of any kind: a page must not make a failure of a good run
            log.error(
                "the report could not be written (%s: %s); 'specfed report %s' tries again",
                type(problem).__name__,
                problem,
                self.folder.path,
            )
