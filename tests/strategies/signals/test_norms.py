"""Update norms, and the typical one."""

import numpy as np
import pytest

from strategies.signals.norms import norms, typical
from tests.strategies.rounds import whole_round


def test_the_norm_is_over_all_tensors() -> None:
    sizes = {"a": 1.0, "b": 2.0, "c": 10.0}
    round_ = whole_round({n: {"w": np.full((1, 1), 3 * s), "b": np.full(1, 4 * s)} for n, s in sizes.items()})
    assert norms(round_) == pytest.approx([5, 10, 50])


def test_those_who_did_not_move_do_not_make_the_median() -> None:
    assert typical(np.array([0.0, 0, 0, 2, 4])) == 3
    assert typical(np.zeros(2)) == 0
