"""What a run's drift records say: is filtering likely to help, and the rows of report-drift.csv."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from common.bands import BANDS
from common.ledger import DriftRecord

Verdict = Literal["concentrated", "between", "flat", "higher", "hidden", "unknown"]

FLAT = 1 / BANDS  # a band's share of a flat spectrum
CONCENTRATED = 2 * FLAT  # from this share of band 0 on, the drift is concentrated there
NOT_FLAT = 1.5 * FLAT
HIGHER = 0.5 * FLAT  # below it, the drift lies in the other bands
SENTENCES: dict[Verdict, str] = {
    "concentrated": "Drift is concentrated in the low band: filtering is likely to help.",
    "between": (
        "Drift is somewhat stronger in the low band: filtering may help. Compare a run with it and one "
        "without."
    ),
    "flat": "Drift is flat over frequencies: filtering will mostly shorten steps.",
    "higher": "Drift lies above the low band: filtering takes little of it away.",
    "hidden": (
        "Whether filtering helps cannot be judged from this run: its updates have passed the gradient "
        "filter, which empties the lowest frequencies by construction. Use diagnostics=gradients, or "
        "filter=none."
    ),
    "unknown": "Whether filtering helps cannot be judged: no round had two clients that differ.",
}
COLUMNS = (
    "round", "source", "filtered", "clients", "what", "name", "dist", "std", "energy", "absolute", "relative",
    "cosine", "filtered_relative", "filtered_cosine", "cka",
)  # fmt: skip


@dataclass(frozen=True)
class Judgement:
    """Whether the gradient filter is likely to help, by a rule of thumb."""

    verdict: Verdict
    text: str  # the verdict as a sentence
    share: float | None  # of band 0 in the summed Dist, mean over the rounds that can be judged


@dataclass(frozen=True)
class Trial:
    """What the filter does to the relative divergence of the tensors that it changes."""

    round: int
    tensors: int
    falls: int  # in how many of them it falls


def judge(records: Sequence[DriftRecord]) -> Judgement:
    """The rule: band 0's share of Dist(m) summed over the bands, against the share in a flat spectrum.

    From twice that on, drift counts as concentrated, below one and a half times as flat, below half of it as
    lying elsewhere. What has passed the filter is not judged.
    """
    open_ = [record for record in records if not record.filtered]
    shares = [record.dist[0] / sum(record.dist) for record in open_ if sum(record.dist) > 0]
    if not shares:
        verdict: Verdict = "hidden" if any(record.filtered for record in records) else "unknown"
        return Judgement(verdict, SENTENCES[verdict], None)
    share = fmean(shares)
    steps: tuple[tuple[float, Verdict], ...] = (
        (CONCENTRATED, "concentrated"),
        (NOT_FLAT, "between"),
        (HIGHER, "flat"),
        (0.0, "higher"),
    )
    verdict = next(name for least, name in steps if share >= least)
    return Judgement(verdict, SENTENCES[verdict], share)


def last_trial(records: Sequence[DriftRecord]) -> Trial | None:
    """What the filter would have done to the last round in which it was tried."""
    for record in reversed(records):
        pairs = [
            (layer.relative, layer.filtered_relative)
            for layer in record.layers
            if layer.relative is not None and layer.filtered_relative is not None
        ]
        if pairs:
            return Trial(record.round, len(pairs), sum(after < before for before, after in pairs))
    return None


def csv_rows(records: Sequence[DriftRecord]) -> Iterator[list[str | float | None]]:
    """``COLUMNS``, then for each round a row a band, a row a tensor, and one for the CKA, if measured."""
    yield list(COLUMNS)
    for record in records:
        for m, energy in enumerate(record.energy or (None,) * len(record.dist)):
            dist = record.dist[m] if record.dist else None
            std = record.std[m] if record.std else None
            yield _row(record, "band", str(m), dist=dist, std=std, energy=energy)
        for layer in record.layers:
            yield _row(record, "tensor", **layer.model_dump())
        if record.cka is not None:
            yield _row(record, "models", "", cka=record.cka)


def _row(record: DriftRecord, what: str, name: str, **values: float | None) -> list[str | float | None]:
    start = (record.round, record.source, str(record.filtered).lower(), record.clients, what, name)
    return [*start, *(values.get(key) for key in COLUMNS[len(start) :])]
