"""Update norms over the typical one."""

import numpy as np
import pytest

from strategies.signals.norms import relative_norm, typical
from tests.strategies.rounds import whole_round


def test_the_norm_is_over_all_tensors_and_relative_to_the_median() -> None:
    sizes = {"a": 1.0, "b": 2.0, "c": 10.0}
    round_ = whole_round({n: {"w": np.full((1, 1), 3 * s), "b": np.full(1, 4 * s)} for n, s in sizes.items()})
    assert relative_norm(round_, np.ones(3)).values == pytest.approx([0.5, 1, 5])


def test_those_who_did_not_move_do_not_make_the_median() -> None:
    assert typical(np.array([0.0, 0, 0, 2, 4])) == 3
    assert typical(np.zeros(2)) == 0


def test_a_round_without_movement_has_no_reading() -> None:
    reading = relative_norm(whole_round({"a": {"w": np.zeros((2, 2))}}), np.ones(1))
    assert np.isnan(reading.values).all() and "every update is zero" in reading.unavailable
