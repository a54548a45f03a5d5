"""Scores that nodes tell, pooled by hand."""

import math
import sys

import pytest
from flwr.app import Error, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from server_app.evaluation import Score, pooled, told_in_round, told_when_asked
from specfed.local_grid import own_identity
from strategies.flower import RoundResult, Verdict
from strategies.round import Reply


def replied(client: str, accuracy: float, loss: float, rows: float) -> Verdict:
    told = {"accuracy-before": accuracy, "loss-before": loss, "validation-examples": rows}
    return Verdict(client, "accepted", "", Reply(client, {}, {}, 50, told))


def answer(node: int, **metrics: float) -> Message:
    record = MetricRecord({name.replace("_", "-"): value for name, value in metrics.items()})
    return Message(RecordDict({"metrics": record}), reply_to=Message(RecordDict(), node, "evaluate"))


def test_scores_are_pooled_by_rows() -> None:
    # (30 * 0.5 + 10 * 0.9) / 40 and (30 * 2 + 10 * 1) / 40
    told = {"a": (0.5, 2.0, 30.0), "b": (0.9, 1.0, 10.0)}
    assert pooled(told, 30) == Score(pytest.approx(0.6), 1.75, "nodes")


def test_of_nobodys_scores_there_is_none() -> None:
    assert pooled({}, 30) == Score(None, None, "none")


@given(st.permutations([(0.1, 1.1, 7.0), (0.7, 0.3, 3.0), (0.2, 2.2, 11.0), (0.33, 0.1, 5.0)]))
def test_the_order_of_arrival_changes_no_bit(told: list[tuple[float, float, float]]) -> None:
    first = {"a": (0.1, 1.1, 7.0), "b": (0.7, 0.3, 3.0), "c": (0.2, 2.2, 11.0), "d": (0.33, 0.1, 5.0)}
    assert pooled(dict(zip("abcd", told, strict=True)), 100) == pooled(first, 100)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=6))
def test_the_largest_losses_can_be_pooled(rows: list[int]) -> None:
    most = sys.float_info.max
    score = pooled({str(i): (1.0, most, float(n)) for i, n in enumerate(rows)}, 10**6)
    assert score.loss is not None and score.loss >= 0.999 * most


@pytest.mark.parametrize(
    "one",
    [
        (93.1, 0.5, 30.0),
        (-0.1, 0.5, 30.0),
        (math.nan, 0.5, 30.0),
        (0.5, -5.0, 30.0),
        (0.5, math.inf, 30.0),
        (0.5, math.nan, 30.0),
        (0.5, 0.5, 0.0),
        (0.5, 0.5, 101.0),
    ],
)
def test_a_score_that_cannot_be_is_not_believed(one: tuple[float, float, float]) -> None:
    score = pooled({"a": (0.5, 2.0, 100.0), "b": one}, 100)
    assert (score.accuracy, score.loss, score.on) == (0.5, 2.0, "nodes")
    accuracy, loss, rows = one
    assert score.note == (
        f"b's own score is not believed: accuracy {accuracy:g}, loss {loss:g} on {rows:g} rows"
    )
    alone = pooled({"b": one}, 100)
    assert (alone.accuracy, alone.loss, alone.on, alone.note) == (None, None, "none", score.note)


@pytest.mark.parametrize(
    ("score", "doubt"),
    [
        (Score(0.5, 0.5, "server"), ""),
        (Score(), ""),
        (Score(0.5, math.inf, "server"), "the last model's loss is inf"),
        (Score(None, None, "none", "b's"), "b's"),
    ],
)
def test_a_doubt(score: Score, doubt: str) -> None:
    assert score.doubt == doubt


def test_in_a_round_only_who_tested_is_heard() -> None:
    result = RoundResult(
        1,
        (
            replied("a", 0.5, 2.0, 30),
            Verdict("b", "accepted", "", Reply("b", {}, {}, 50, {"accuracy-before": 0.5})),
            Verdict("e", "missing", "no reply", None),
            replied("f", 0.25, 1.0, 1),
        ),
        5.0,
    )
    assert told_in_round(result) == {"a": (0.5, 2.0, 30.0), "f": (0.25, 1.0, 1.0)}


def test_who_is_asked_and_does_not_tell_is_left_out() -> None:
    with own_identity():
        replies = [
            answer(11, accuracy=0.5, loss=2.0, num_examples=30),
            answer(12, accuracy=0.5, num_examples=30),
            Message(Error(1, "gone"), reply_to=Message(RecordDict(), 13, "evaluate")),
            answer(14, accuracy=0.25, loss=1.0, num_examples=1),
        ]
    told = told_when_asked(replies, {11: "a", 12: "b", 13: "c", 14: "d"})
    assert told == {"a": (0.5, 2.0, 30.0), "d": (0.25, 1.0, 1.0)}
