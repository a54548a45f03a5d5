"""Ledgers to report on, record by record."""

from common.config import RunConfig
from common.ledger import ClientRecord, End, Flag, Header, Record, RoundRecord, Suspect
from tests.records import MODEL, node


def header(*names: str, **config: str | int | float | bool) -> Header:
    return Header(
        run_id="2026-12-01-demo-7f3a",
        folder="runs/2026-12-01-demo-7f3a",
        time="2026-12-01T14:03:11+00:00",
        config=RunConfig(rounds=3).as_dict() | config,
        versions={"specfed": "0.1.0"},
        model=MODEL,
        nodes=tuple(node(name) for name in names),
    )


def accepted(number: int, client: str, score: float | None, weight: float, **more: object) -> ClientRecord:
    values: dict[str, object] = {
        "round": number,
        "client": client,
        "status": "accepted",
        "examples": 50,
        "score": score,
        "weight": weight,
        "signals": {"entropy": 0.5 + number / 10, "alignment": None},
    }
    return ClientRecord.model_validate(values | more)


def done(number: int, accuracy: float | None = None, **more: object) -> RoundRecord:
    values: dict[str, object] = {
        "round": number,
        "rounds": 3,
        "sampled": 2,
        "accepted": 2,
        "moved": True,
        "accuracy": accuracy,
        "loss": None if accuracy is None else 2 * accuracy,
        "evaluated_on": "none" if accuracy is None else "nodes",
        "seconds": 5.0,
        "elapsed": 5.0 * number,
    }
    return RoundRecord.model_validate(values | more)


FLAG = Flag(test="robust-z", value=-4.5, threshold=-3.5, text="lowest score of all")
RECORDS: tuple[Record, ...] = (
    header("a", "b", "never"),
    accepted(1, "a", 0.5, 0.5, score_std=0.1),
    accepted(1, "b", 0.5, 0.5, score_std=0.1),
    done(1, 0.25, noise={"entropy": 0.1, "alignment": 0.2}),
    accepted(2, "a", 0.625, 0.75, score_std=0.05),
    accepted(2, "b", 0.375, 0.25, score_std=0.05, flags=(FLAG,)),
    done(2, 0.5, noise={"entropy": 0.05, "alignment": 0.2}),
    accepted(3, "a", 0.75, 1.0, score_std=0.025),
    ClientRecord(round=3, client="b", status="quarantined", reason="fc2.weight holds NaN"),
    done(3, 0.75, accepted=1),
    End(
        status="completed-degraded",
        reason="1 of 3 rounds lost a reply",
        rounds=3,
        seconds=71,
        accuracy=0.75,
        loss=1.5,
        suspects=(Suspect(client="b", text="lowest score in 2 of 3 rounds"),),
    ),
)
