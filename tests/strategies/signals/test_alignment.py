"""Class-wise alignment: the hand-computed example, its range, and rows without a direction."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies.signals.alignment import (
    VARIANTS,
    alignment,
    alignments,
    leave_one_out_alignment,
    leave_one_out_alignments,
    raw_alignment,
)
from tests.strategies.rounds import head_round

# g = [[2, 1], [0, 1]]; cosines of the first rows 2/sqrt 5, 2/sqrt 5, 1/sqrt 5, of the second 1, -1, 1.
EXAMPLE = {"a": [[1, 0], [0, 1]], "b": [[1, 0], [0, -1]], "c": [[0, 1], [0, 1]]}


def test_alignment_by_hand() -> None:
    reading = alignment(head_round(EXAMPLE), np.ones(3))
    assert reading.values == pytest.approx([0.9736067977, 0.4736067977, 0.8618033989], abs=1e-9)


def test_the_raw_alignment_is_the_mean_cosine() -> None:
    reading = raw_alignment(head_round(EXAMPLE), np.ones(3))
    assert reading.values == pytest.approx([0.9472135955, -0.0527864045, 0.7236067977], abs=1e-9)


def test_left_out_of_the_sum_by_hand() -> None:
    # The others' sums: [[1, 1], [0, 0]], [[1, 1], [0, 2]], [[2, 0], [0, 0]].
    reading = leave_one_out_alignment(head_round(EXAMPLE), np.ones(3))
    assert reading.values == pytest.approx([0.3535533906, -0.1464466094, 0.0], abs=1e-9)


def test_a_client_alone_has_nobody_to_be_aligned_with() -> None:
    assert leave_one_out_alignments(np.ones((1, 2, 3)), np.ones(1)) == pytest.approx([0.0])


def test_the_previous_weights_turn_the_reference() -> None:
    # Only client a counts: g is its own update, and c agrees with it in its second row alone.
    values = alignment(head_round(EXAMPLE), np.array([1.0, 0.0, 0.0])).values
    assert values == pytest.approx([1.0, (1 + (1 - 1) / 2) / 2, (1 + (0 + 1) / 2) / 2])


def test_the_bias_is_a_column_of_its_row() -> None:
    heads = {"a": [[1, 0], [0, 1]], "b": [[1, 0], [0, 1]]}
    without = alignment(head_round(heads), np.ones(2)).values
    with_bias = alignment(head_round(heads, {"a": [1, 0], "b": [-1, 0]}), np.ones(2)).values
    assert without == pytest.approx([1, 1])
    # Rows (1, 0, 1) and (1, 0, -1) against their sum (2, 0, 0): cosine 1 / sqrt 2.
    assert with_bias == pytest.approx([(1 + (1 / np.sqrt(2) + 1) / 2) / 2] * 2)


def test_a_large_update_buys_no_alignment() -> None:
    heads = {"a": [[1, 0]], "b": [[1, 0]], "c": [[0, 1]]}
    loud = heads | {"c": [[0, 1000]]}
    assert alignments(head_round(loud).head_rows(), np.ones(3)) == pytest.approx(
        alignments(head_round(heads).head_rows(), np.ones(3))
    )


def test_classes_that_nobody_moved_are_left_out_and_rows_at_rest_have_cosine_zero() -> None:
    heads = {"a": [[1.0, 0], [0, 0]], "b": [[0.0, 0], [0, 0]]}
    assert alignment(head_round(heads), np.ones(2)).values == pytest.approx([1.0, 0.5])


def test_no_update_at_all_is_half_for_everybody() -> None:
    assert alignment(head_round({"a": np.zeros((2, 2)), "b": np.zeros((2, 2))}), np.ones(2)).values == (
        pytest.approx([0.5, 0.5])
    )


@given(
    arrays(np.float64, (3, 4, 2), elements=st.floats(-100, 100)),
    arrays(np.float64, 3, elements=st.floats(0, 1)),
)
def test_alignment_lies_between_zero_and_one_and_keeps_to_its_client(rows: np.ndarray, w: np.ndarray) -> None:
    values = alignments(rows, w)
    assert ((values >= 0) & (values <= 1)).all()
    turned = [2, 0, 1]
    assert alignments(rows[turned], w[turned]) == pytest.approx(values[turned], abs=1e-6)


def test_negative_alignments_count_as_nothing_with_a_note() -> None:
    raw = VARIANTS["raw"](head_round(EXAMPLE), np.ones(3))
    assert raw.values == pytest.approx([0.9472135955, 0.0, 0.7236067977], abs=1e-9)
    assert raw.note == "negative alignments count as 0: b (-0.05)"
    others = VARIANTS["leave-one-out"](head_round(EXAMPLE), np.ones(3))
    assert others.values == pytest.approx([0.3535533906, 0.0, 0.0], abs=1e-9)
    assert others.note == "negative alignments count as 0: b (-0.15)"
    assert VARIANTS["mapped"](head_round(EXAMPLE), np.ones(3)).note == ""


@given(arrays(np.float64, (4, 3, 2), elements=st.floats(-100, 100).map(lambda v: round(v, 3))))
def test_leaving_one_out_is_summing_the_others(rows: np.ndarray) -> None:
    norms = np.linalg.norm(rows, axis=(1, 2))
    limit = np.median(norms[norms > 0]) if norms.any() else 1.0
    clipped = rows * (limit / np.maximum(norms, limit))[:, None, None]
    total = clipped.sum(axis=0)
    moved = np.linalg.norm(total, axis=1) > 1e-9
    expected = []
    for i, own in enumerate(clipped):
        others = np.delete(clipped, i, axis=0).sum(axis=0)
        cosines = [
            a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
            if min(np.linalg.norm(a), np.linalg.norm(b)) > 1e-9
            else 0.0
            for a, b in zip(own[moved], others[moved], strict=True)
        ]
        expected.append(np.mean(cosines) if cosines else 0.0)
    if (np.linalg.norm(total, axis=1)[~moved] == 0).all():  # else rounding decides what counts
        assert leave_one_out_alignments(rows, np.ones(4)) == pytest.approx(expected, abs=1e-6)


def test_the_others_of_a_class_may_cancel() -> None:
    rows = np.array([[[0.1, 0.7]], [[0.3, 0.3]], [[-0.1, -0.7]]])
    assert leave_one_out_alignments(rows, np.ones(3))[1] == 0
