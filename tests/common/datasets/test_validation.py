"""Which rows are set apart for validation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.datasets import split_validation

ROWS = st.lists(st.integers(0, 30), max_size=40).map(lambda rows: np.array(rows, dtype=np.int64))


@given(ROWS, st.floats(0, 1, exclude_max=True), st.integers(0, 5))
def test_validation_rows(rows: np.ndarray, fraction: float, seed: int) -> None:
    train, validation = split_validation(rows, fraction, seed)
    distinct = len(set(rows.tolist()))
    assert len(validation) == max(0, min(round(fraction * distinct), distinct - 1))
    assert validation.tolist() == sorted(set(validation.tolist()))
    assert train.tolist() == [row for row in rows.tolist() if row not in set(validation.tolist())]
    again = split_validation(rows, fraction, seed)
    assert (again[0].tolist(), again[1].tolist()) == (train.tolist(), validation.tolist())


def test_validation_rows_depend_on_the_seed_and_not_on_the_order() -> None:
    rows = np.arange(100)
    chosen = [split_validation(rows, 0.2, seed)[1].tolist() for seed in range(3)]
    assert len(set(map(tuple, chosen))) == 3
    assert split_validation(rows[::-1], 0.2, 0)[1].tolist() == chosen[0]
    assert split_validation(rows, 0, 0)[1].tolist() == []


@pytest.mark.parametrize("fraction", [-0.1, 1, float("nan")])
def test_a_share_is_a_share(fraction: float) -> None:
    with pytest.raises(ValueError, match="0 <= fraction < 1"):
        split_validation(np.arange(4), fraction, 0)
