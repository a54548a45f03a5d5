"""Norm clipping: down to the limit, never up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies.rescale import as_sent, clipped, equal_norms, in_turn
from strategies.signals.norms import norms
from tests.strategies.rounds import head_round


def test_only_what_is_too_long_is_scaled() -> None:
    round_ = head_round({"a": [[3.0, 4]], "b": [[1.0, 0]], "c": [[0.0, 0]], "d": [[0.0, 2]]})  # median 2
    after = np.concatenate(clipped(1.5)(round_).head_rows())
    assert after == pytest.approx(np.array([[1.8, 2.4], [1, 0], [0, 0], [0, 2]]))
    assert clipped(2.5)(round_) == as_sent(round_) == round_


def test_types_stay() -> None:
    round_ = head_round({"a": [[3.0, 4]], "b": [[1.0, 0]]})
    for reply in round_.replies:
        reply.update["head.weight"] = reply.update["head.weight"].astype(np.float32)
    assert {r.update["head.weight"].dtype for r in equal_norms(round_).replies} == {np.dtype(np.float32)}


def test_a_round_of_zeros_stays_one() -> None:
    zeros = head_round({"a": [[0.0, 0]], "b": [[0.0, 0]]})
    for change in (clipped(1.0), equal_norms, in_turn(equal_norms, clipped(0.5))):
        assert not np.stack(change(zeros).head_rows()).any()


def test_a_zero_update_stays_one_beside_a_huge_one_and_a_tiny_one_keeps_its_numbers() -> None:
    round_ = head_round({"a": [[0.0, 0]], "b": [[3e38, 0]], "c": [[1e-30, 0]]})
    for reply in round_.replies:
        reply.update["head.weight"] = reply.update["head.weight"].astype(np.float32)
    after = np.stack(equal_norms(round_).head_rows())
    typical = 1.5e38  # of those that are not zero
    assert after.ravel() == pytest.approx([0, 0, typical, 0, 1e-30 * typical / 1e-7, 0], rel=1e-6)


@given(arrays(np.float64, (4, 2, 3), elements=st.floats(-1e6, 1e6)), st.floats(0.1, 5))
def test_nothing_grows_and_nothing_is_longer_than_the_limit(heads: np.ndarray, factor: float) -> None:
    round_ = head_round(dict(zip("abcd", heads, strict=True)))
    before, after = norms(round_), norms(clipped(factor)(round_))
    limit = factor * np.median(before[before > 0]) if before.any() else 0
    assert (after <= before * (1 + 1e-9)).all() and (after <= limit * (1 + 1e-9)).all()
