"""Who trains in a round."""

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.flower import Cohort


@pytest.mark.parametrize(
    ("fraction", "nodes", "sampled"), [(0.07, 100, 7), (0.55, 20, 11), (0.14, 50, 7), (0.01, 5, 1), (1, 9, 9)]
)
def test_examples(fraction: float, nodes: int, sampled: int) -> None:
    assert len(Cohort(fraction=fraction).sample([f"site-{i}" for i in range(nodes)], 1)) == sampled


@given(st.integers(1, 1000), st.integers(1, 300))
def test_a_fraction_as_it_is_written_is_rounded_up(thousandths: int, nodes: int) -> None:
    chosen = Cohort(fraction=thousandths / 1000).sample([f"site-{i}" for i in range(nodes)], 1)
    assert len(chosen) == ceil(Fraction(thousandths, 1000) * nodes)
