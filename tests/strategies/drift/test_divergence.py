"""Divergence and cosine: the oracle by hand, with and without the filter, and the degenerate cases."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strategies.drift import divergence as module
from strategies.drift.divergence import NOTHING, Divergence, divergence

M2 = [np.array([1.0, 2, 3, 4]), np.ones(4)]


def without_mean(row: np.ndarray) -> np.ndarray:
    """The filter with z = 1 on four elements."""
    spectrum = torch.fft.rfft(torch.from_numpy(row))
    spectrum[0] = 0
    return torch.fft.irfft(spectrum, n=len(row)).numpy()


def test_the_oracle_by_hand() -> None:
    assert divergence(M2).absolute == pytest.approx(1.870829, abs=1e-6)
    filtered = [without_mean(row) for row in M2]
    assert divergence(filtered).absolute == pytest.approx(1.118034, abs=1e-6)


def test_relative_and_cosine_by_hand() -> None:
    found = divergence(M2)
    # The mean is (1, 1.5, 2, 2.5), of squared norm 13.5; the cosine 10 / (sqrt(30) * 2).
    assert found.relative == pytest.approx(np.sqrt(3.5) / np.sqrt(13.5))
    assert found.cosine == pytest.approx(10 / (2 * np.sqrt(30)))


def test_against_the_raw_consensus_the_removed_mean_counts_too() -> None:
    filtered, mean = [without_mean(row) for row in M2], np.array([1, 1.5, 2, 2.5])
    found = divergence(filtered, consensus=mean)
    expected = np.mean([np.linalg.norm(row - mean) for row in filtered])
    assert found.absolute == pytest.approx(expected)
    assert found.absolute > divergence(filtered).absolute  # type: ignore[operator]
    assert found.relative == pytest.approx(expected / np.linalg.norm(mean))


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(1, 40), st.integers(1, 50))
def test_they_are_the_definitions_whatever_the_chunks(
    seed: int, clients: int, length: int, chunk: int
) -> None:
    rows = list(np.random.default_rng(seed).normal(size=(clients, length)))
    mean = sum(rows) / clients
    before, module.CHUNK = module.CHUNK, chunk
    try:
        found = divergence(rows)
    finally:
        module.CHUNK = before
    apart = np.mean([np.linalg.norm(row - mean) for row in rows])
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in combinations(rows, 2)]
    assert found.absolute == pytest.approx(apart)
    assert found.relative == pytest.approx(apart / np.linalg.norm(mean))
    assert found.cosine == pytest.approx(np.mean(cosines), abs=1e-9)


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.floats(1e-9, 1e9))
def test_order_and_scale(seed: int, clients: int, scale: float) -> None:
    rows = list(np.random.default_rng(seed).normal(size=(clients, 30)))
    base = divergence(rows)
    changed = divergence([scale * row for row in reversed(rows)])
    assert changed.absolute == pytest.approx(scale * base.absolute)  # type: ignore[operator]
    assert changed.relative == pytest.approx(base.relative)
    assert changed.cosine == pytest.approx(base.cosine)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], NOTHING),
        ([[1, 2]], NOTHING),
        ([[0, 0], [0, 0]], Divergence(0.0, None, None)),
        ([[3, 4], [0, 0]], Divergence(2.5, 1.0, None)),
        ([[3, 4], [-3, -4]], Divergence(5.0, None, -1.0)),
        ([[3, 4], [3, 4]], Divergence(0.0, 0.0, 1.0)),
        ([[[2]], [[0]], [[1]]], Divergence(pytest.approx(2 / 3), pytest.approx(2 / 3), pytest.approx(1.0))),
    ],
)
def test_degenerate_cases(rows: list[list[float]], expected: Divergence) -> None:
    assert divergence([np.array(row, dtype=np.float32) for row in rows]) == expected


def test_a_mean_that_cancels_up_to_rounding_has_no_relative_divergence() -> None:
    rows = [np.array([0.1, 1.0]), np.array([0.2, -1.0]), np.array([-0.3, 0.0])]
    assert sum(rows).any()  # 0.1 + 0.2 - 0.3 is 5.6e-17
    assert divergence(rows).relative is None
