"""Why a client got its weight, in words."""

import pytest

from common.config import RunConfig, Value
from common.errors import ConfigError
from common.ledger import ClientRecord, Record
from server_app.report.explanation import explain
from server_app.report.run_view import view
from tests.server_app.report.ledgers import FLAG, accepted, done, header

SAID = {"examples": 1200, "steps": 40, "seconds": 1.25, "loss_before": 0.9, "train_loss": 0.6}
LEDGER: list[Record] = [
    header("a", "b", "site-10", "site-2"),
    accepted(1, "a", 0.3, 0.6),
    accepted(1, "b", 0.2, 0.4),
    done(1),
    accepted(2, "a", 0.5, 0.25, update_norm=3.0, signals={"entropy": 1.5, "alignment": None}, **SAID),
    accepted(2, "b", 0.4, 0.75, update_norm=1.0, signals={"entropy": 2.0, "alignment": None}, flags=(FLAG,)),
    accepted(2, "site-10", None, 0.0, update_norm=1.5, signals={"entropy": 1.0}),
    ClientRecord(round=2, client="site-2", status="quarantined", reason="update holds NaN"),
    done(2, noise={"entropy": 0.8, "alignment": 1.1}, reason="the scores have no positive sum"),
]


def lines(*arguments: object, ledger: list[Record] = LEDGER) -> list[str]:
    return list(explain(view(ledger), *arguments))  # type: ignore[arg-type]


def test_one_client_in_one_round() -> None:
    told = [" ".join(line.split()) for line in lines(2, "a")]
    assert told == [
        "a in round 2: accepted",
        "it says 1,200 examples, 40 steps, 1.2 s; loss 0.900 before, 0.600 in training",
        "update length 3.000, 2.00 times the median",
        "entropy 1.500, place 2 of 3 (1.000 to 2.000)",
        "score 0.500, 0.300 the last time",
        "weight 0.250, an equal one is 0.333",
        "",
        "round 2: weights by spectralfuse; guards observe",
        "trust variance given to entropy 0.800, alignment 1.100; the smaller, the more the signal counts",
        "note the scores have no positive sum",
    ]


def test_a_flag_is_told_with_its_test() -> None:
    assert any(line.split() == ["flag", f"{FLAG.test}:", *FLAG.text.split()] for line in lines(2, "b"))


def test_a_reply_that_was_not_accepted_has_its_reason_alone() -> None:
    assert lines(2, "site-2")[:2] == ["site-2 in round 2: quarantined: update holds NaN", ""]


def test_all_clients_of_the_last_round_stand_in_the_order_of_a_person() -> None:
    heads = [line.split(" in round 2")[0] for line in lines() if " in round 2" in line]
    assert heads == ["a", "b", "site-2", "site-10"]


def test_a_first_score_and_a_client_that_was_not_asked() -> None:
    assert any("its first one" in line for line in lines(1, "a"))
    assert lines(1, "site-2")[0] == "site-2 was not asked in round 1."


def test_observed_scores_do_not_weigh() -> None:
    ledger = [header("a", contribution="observe"), *LEDGER[1:4]]
    assert (
        lines(1, "a", ledger=ledger)[-1]
        == "round 1: weights by uniform; spectralfuse observe; guards observe"
    )


def test_a_run_that_scores_nobody_has_no_guards_at_work() -> None:
    ledger = [header("a", weighting="uniform"), *LEDGER[1:4]]
    assert lines(1, "a", ledger=ledger)[-1] == "round 1: weights by uniform; guards off"


@pytest.mark.parametrize(
    ("arguments", "ledger", "says"),
    [
        ((3,), LEDGER, "--round takes one of the run's rounds, 1 to 2; got 3"),
        ((2, "site2"), LEDGER, 'no client "site2" in run 2026-12-01-demo-7f3a. Did you mean "site-2"?'),
        ((2, "zzz"), LEDGER, "They are a, b, site-2, site-10."),
        ((), LEDGER[:1], "has no round yet"),
    ],
)
def test_what_the_ledger_does_not_know(
    arguments: tuple[object, ...], ledger: list[Record], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        lines(*arguments, ledger=ledger)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"weighting": "examples", "contribution": "observe"}, "weights by examples; guards off"),
        ({"contribution": "observe"}, "weights by uniform; spectralfuse observe; guards observe"),
        ({"contribution": "off", "base-weighting": "examples"}, "weights by examples; spectralfuse off"),
        (
            {"aggregation": "krum"},
            "weights by spectralfuse; aggregation krum, which takes no weights; guards",
        ),
    ],
)
def test_the_weights_are_those_that_the_run_used(keys: dict[str, Value], says: str) -> None:
    begun = header("a", "b")
    config = RunConfig.read({"weighting": "spectralfuse", **keys}, "the test").as_dict()
    ledger: list[Record] = [begun.model_copy(update={"config": config}), accepted(1, "a", 0.3, 0.6), done(1)]
    assert any(line.startswith(f"round 1: {says}") for line in lines(1, "a", ledger=ledger))
