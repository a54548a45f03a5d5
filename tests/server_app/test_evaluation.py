"""Scores that nodes tell, pooled by hand."""

import math

import pytest
from flwr.app import Error, Message, MetricRecord, RecordDict

from server_app.evaluation import Score, pooled, told_in_round, told_when_asked
from specfed.local_grid import own_identity
from strategies.flower import RoundResult, Verdict
from strategies.round import Reply


def replied(client: str, accuracy: float, loss: float, rows: float) -> Verdict:
    told = {"accuracy-before": accuracy, "loss-before": loss, "validation-examples": rows}
    return Verdict(client, "accepted", "", Reply(client, {}, {}, 50, told))


def answer(**metrics: float) -> Message:
    record = MetricRecord({name.replace("_", "-"): value for name, value in metrics.items()})
    return Message(RecordDict({"metrics": record}), 1, "evaluate")


def test_scores_are_pooled_by_rows() -> None:
    # (30 * 0.5 + 10 * 0.9) / 40 and (30 * 2 + 10 * 1) / 40
    assert pooled([(0.5, 2.0, 30), (0.9, 1.0, 10)]) == Score(pytest.approx(0.6), 1.75, "nodes")


def test_of_nobodys_scores_there_is_none() -> None:
    assert pooled([]) == Score(None, None, "none")


def test_in_a_round_only_who_tested_is_heard() -> None:
    result = RoundResult(
        1,
        (
            replied("a", 0.5, 2.0, 30),
            replied("b", math.nan, 2.0, 30),
            replied("c", 0.5, math.inf, 30),
            replied("d", 0.5, 2.0, 0),
            Verdict("e", "missing", "no reply", None),
            replied("f", 0.25, 1.0, 1),
        ),
        5.0,
    )
    assert told_in_round(result) == {"a": (0.5, 2.0, 30.0), "f": (0.25, 1.0, 1.0)}


def test_who_is_asked_and_does_not_tell_is_left_out() -> None:
    with own_identity():
        silent = Message(RecordDict(), 1, "evaluate")
        replies = [
            answer(accuracy=0.5, loss=2.0, num_examples=30),
            answer(accuracy=0.5, num_examples=30),
            silent,
            Message(Error(1, "gone"), reply_to=silent),
            answer(accuracy=0.25, loss=1.0, num_examples=1),
        ]
    assert told_when_asked(replies) == [(0.5, 2.0, 30.0), (0.25, 1.0, 1.0)]
