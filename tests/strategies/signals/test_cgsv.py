"""Cosine with the cohort's scaled sum: the hand-computed example, zero updates, scale."""

import numpy as np
import pytest

from strategies.rescale import equal_norms
from strategies.signals.cgsv import cosine
from tests.strategies.rounds import head_round

# Norms 5, 1, 1; the two short ones cancel, so the sum points along (3, 4).
EXAMPLE = {"a": [[3, 4]], "b": [[1, 0]], "c": [[-1, 0]]}


def test_cosines_by_hand() -> None:
    assert cosine(head_round(EXAMPLE), np.ones(3)).values == pytest.approx([1, 0.6, -0.6], abs=1e-6)


def test_only_the_direction_counts() -> None:
    loud = {
        name: np.array(m) * factor for (name, m), factor in zip(EXAMPLE.items(), (1, 100, 0.01), strict=True)
    }
    assert cosine(head_round(loud), np.ones(3)).values == pytest.approx([1, 0.6, -0.6], abs=1e-4)


def test_previous_weights_turn_the_sum() -> None:
    assert cosine(head_round(EXAMPLE), np.array([0.0, 1, 0])).values == pytest.approx([0.6, 1, -1], abs=1e-6)


def test_a_zero_update_has_cosine_zero() -> None:
    values = cosine(head_round({"a": [[1.0, 0]], "b": [[0.0, 0]]}), np.ones(2)).values
    assert values == pytest.approx([1, 0])
    assert cosine(head_round({"a": [[0.0, 0]], "b": [[0.0, 0]]}), np.ones(2)).values.tolist() == [0, 0]


def test_updates_that_cancel_point_nowhere() -> None:
    assert cosine(head_round({"a": [[1.0, 0]], "b": [[-1.0, 0]]}), np.ones(2)).values.tolist() == [0, 0]


def test_equal_norms_are_the_median_of_those_that_moved() -> None:
    heads = {"a": [[3.0, 4]], "b": [[1.0, 0]], "c": [[0.0, 0]], "d": [[0.0, 2]]}
    scaled = np.concatenate(equal_norms(head_round(heads)).head_rows())
    assert scaled == pytest.approx(np.array([[1.2, 1.6], [2, 0], [0, 0], [0, 2]]), abs=1e-6)
