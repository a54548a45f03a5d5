"""The gate: what passes, and the sentence for each thing that does not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from common.params import Arrays
from strategies.admission import Inadmissible, Said, Schema, admit

UPDATE = {"w": np.ones((2, 3), np.float32), "b": np.zeros(2, np.float32)}
BUFFERS = {"count": np.array(3)}
SCHEMA = Schema.of(UPDATE, BUFFERS, max_examples=1000)
METRICS = {"num-examples": 10, "steps": 4, "train-loss": 0.5}


def test_a_good_reply_comes_through_untouched() -> None:
    reply = admit("a", Said(UPDATE, BUFFERS, METRICS), SCHEMA)
    assert reply.update is UPDATE and reply.examples == 10
    assert reply.metrics == {"num-examples": 10.0, "steps": 4.0, "train-loss": 0.5}


def test_lists_of_numbers_are_kept_apart() -> None:
    lists = {"energy-removed": [0.5, 1], "names": ["a", "b"], "empty": []}
    reply = admit("a", Said(UPDATE, BUFFERS, {**METRICS, **lists}), SCHEMA)
    assert reply.series == {"energy-removed": (0.5, 1.0), "empty": ()}
    assert reply.metrics.keys() & lists.keys() == set()


def test_what_an_update_is_made_into_is_finite_too() -> None:
    def whole(update: Arrays) -> Arrays:
        with np.errstate(over="ignore"):
            return {name: np.float32(4) * x for name, x in update.items()}

    assert admit("a", Said(UPDATE, BUFFERS, METRICS), SCHEMA, whole).update["w"][0, 0] == 4
    huge = UPDATE | {"w": np.full((2, 3), 3e38, np.float32)}
    with pytest.raises(Inadmissible, match='update, made whole, "w" holds NaN or infinity'):
        admit("a", Said(huge, BUFFERS, METRICS), SCHEMA, whole)


@pytest.mark.parametrize("name", ["running_var", "1.running_var"])
def test_a_variance_is_not_negative(name: str) -> None:
    good = {name: np.array([0.5, 0], np.float32), "1.running_mean": np.array([-1, 0], np.float32)}
    schema = Schema.of(UPDATE, good, max_examples=1000)
    assert admit("a", Said(UPDATE, good, METRICS), schema).buffers is good
    bad = good | {name: np.array([0.5, -1e-9], np.float32)}
    with pytest.raises(Inadmissible, match=f'buffers "{name}" holds a negative number; it takes variances'):
        admit("a", Said(UPDATE, bad, METRICS), schema)


NAN = np.array([[1, 2, 3], [4, np.nan, 6]], np.float32)
INF = np.array([np.inf, 0], np.float32)


@pytest.mark.parametrize(
    ("update", "buffers", "metrics", "sentence"),
    [
        ({"w": UPDATE["w"]}, BUFFERS, METRICS, 'update lacks "b"'),
        ({}, BUFFERS, METRICS, 'update lacks "b" and 1 more'),
        (UPDATE | {"evil": INF}, BUFFERS, METRICS, 'update has "evil", which the model has not'),
        (
            UPDATE | {"w": np.ones((3, 2), np.float32)},
            BUFFERS,
            METRICS,
            'update "w" has shape (3, 2); it takes (2, 3)',
        ),
        (
            UPDATE | {"b": np.ones(1, np.float32)},
            BUFFERS,
            METRICS,
            'update "b" has shape (1,); it takes (2,)',
        ),
        (UPDATE | {"b": np.zeros(2)}, BUFFERS, METRICS, 'update "b" is float64; it takes float32'),
        (UPDATE | {"b": np.zeros(2, int)}, BUFFERS, METRICS, 'update "b" is int64; it takes float32'),
        (UPDATE | {"w": NAN}, BUFFERS, METRICS, 'update "w" holds NaN or infinity'),
        (UPDATE | {"b": INF}, BUFFERS, METRICS, 'update "b" holds NaN or infinity'),
        (UPDATE, {}, METRICS, 'buffers lacks "count"'),
        (UPDATE, {"count": np.array(3.0)}, METRICS, 'buffers "count" is float64; it takes int64'),
        (UPDATE, BUFFERS, {}, "num-examples is None; it takes a whole number"),
        (UPDATE, BUFFERS, {"num-examples": float("nan")}, "num-examples is nan; it takes a whole number"),
        (UPDATE, BUFFERS, {"num-examples": [1, 2]}, "num-examples is [1, 2]; it takes a whole number"),
        (UPDATE, BUFFERS, {"num-examples": True}, "num-examples is True; it takes a whole number"),
        (UPDATE, BUFFERS, {"num-examples": 0}, "num-examples is 0; it takes 1 to 1000"),
        (UPDATE, BUFFERS, {"num-examples": -150}, "num-examples is -150; it takes 1 to 1000"),
        (UPDATE, BUFFERS, {"num-examples": 10**12}, "num-examples is 1000000000000; it takes 1 to 1000"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    update: dict, buffers: dict, metrics: dict, sentence: str
) -> None:
    with pytest.raises(Inadmissible) as caught:
        admit("a", Said(update, buffers, metrics), SCHEMA)
    assert str(caught.value) == sentence


LABELLED = Schema.of(UPDATE, BUFFERS, max_examples=1000, label_classes=3)


def test_label_counts_are_taken_only_if_they_were_asked_for() -> None:
    said = METRICS | {"label-counts": [4, 0, 6]}
    assert admit("a", Said(UPDATE, BUFFERS, said), LABELLED).label_counts == (4, 0, 6)
    assert admit("a", Said(UPDATE, BUFFERS, said), SCHEMA).label_counts is None


@pytest.mark.parametrize(
    ("counts", "what"),
    [
        (None, "is None"),
        (7, "is 7"),
        ([1, 2], "is 2 values"),
        ([1, 2, 3, 4], "is 4 values"),
        ([1, -1, 3], "holds something else than counts"),
        ([1.0, 2.0, 3.0], "holds something else than counts"),
        ([float("nan")] * 3, "holds something else than counts"),
        ([True, True, True], "holds something else than counts"),
        ([0, 0, 0], "holds something else than counts"),
    ],
)
def test_label_counts_that_are_none_are_refused(counts: object, what: str) -> None:
    with pytest.raises(Inadmissible) as caught:
        admit("a", Said(UPDATE, BUFFERS, METRICS | {"label-counts": counts}), LABELLED)
    takes = "it takes 3 whole numbers, one a class, for this run's weighting"
    assert str(caught.value) == f"label-counts {what}; {takes}"


def test_a_sum_that_overflows_is_not_mistaken_for_infinity() -> None:
    huge = {"w": np.full((2, 3), 3e38, np.float32), "b": np.zeros(2, np.float32)}
    assert admit("a", Said(huge, BUFFERS, METRICS), SCHEMA).update is huge


def test_infinities_that_cancel_are_still_found() -> None:
    with pytest.raises(Inadmissible, match="NaN or infinity"):
        admit("a", Said(UPDATE | {"b": np.array([np.inf, -np.inf], np.float32)}, BUFFERS, METRICS), SCHEMA)


@given(arrays(np.float32, 5, elements=st.floats(width=32, allow_nan=True, allow_infinity=True)))
def test_what_is_admitted_is_finite(x: np.ndarray) -> None:
    schema = Schema.of({"x": np.zeros(5, np.float32)}, {}, 10)
    try:
        admit("a", Said({"x": x}, {}, {"num-examples": 1}), schema)
    except Inadmissible:
        assert not np.isfinite(x).all()
    else:
        assert np.isfinite(x).all()


# Beside the update

ASKED = Schema.of(UPDATE, BUFFERS, 1000, reports=("shift",), needs_steps=True)
SHIFT = {"shift": UPDATE}


def test_steps_and_reports_come_through() -> None:
    reply = admit("a", Said(UPDATE, BUFFERS, METRICS, SHIFT), ASKED)
    assert reply.steps == 4 and reply.reports["shift"] is UPDATE
    assert admit("a", Said(UPDATE, BUFFERS, {"num-examples": 1}), SCHEMA).steps == 0


@pytest.mark.parametrize("steps", [None, 0, -3, 2.0, True, [1], 2**60])
def test_steps_that_are_none(steps: object) -> None:
    with pytest.raises(Inadmissible, match=r"steps is .*; it takes a whole number of at least 1"):
        admit("a", Said(UPDATE, BUFFERS, METRICS | {"steps": steps}, SHIFT), ASKED)
    assert admit("a", Said(UPDATE, BUFFERS, METRICS | {"steps": steps}), SCHEMA).steps == 0


@pytest.mark.parametrize(
    ("reports", "sentence"),
    [
        ({}, "the reply reports nothing beside the update; this algorithm takes shift"),
        (SHIFT | {"more": UPDATE}, "the reply reports more, shift; this algorithm takes shift"),
        ({"shift": {"w": UPDATE["w"]}}, 'report "shift" lacks "b"'),
        ({"shift": UPDATE | {"w": NAN}}, 'report "shift" "w" holds NaN or infinity'),
    ],
)
def test_reports_that_do_not_fit(reports: dict[str, dict[str, np.ndarray]], sentence: str) -> None:
    with pytest.raises(Inadmissible) as refused:
        admit("a", Said(UPDATE, BUFFERS, METRICS, reports), ASKED)
    assert str(refused.value) == sentence


def test_coordinates_have_shapes_of_their_own_and_become_the_update() -> None:
    sent = {"w": np.ones(2, np.float32), "b": np.ones(1, np.float32)}
    schema = Schema.of(UPDATE, BUFFERS, 1000, coordinates=sent)
    whole = admit("a", Said(sent, BUFFERS, METRICS), schema, lambda z: UPDATE)
    assert whole.update is UPDATE
    with pytest.raises(Inadmissible, match='update "w" has shape'):
        admit("a", Said(UPDATE, BUFFERS, METRICS), schema)
