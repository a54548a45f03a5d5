"""CKA: the oracle by hand, the form with p x p matrices, the estimator's own sum, and its invariances."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.drift.cka import linear_cka, mean_cka

A = np.array([[1.0, 0], [0, 1], [-1, 0], [0, -1]])


def by_covariances(x: np.ndarray, y: np.ndarray) -> float:
    """The p x p form."""
    x, y = x - x.mean(0), y - y.mean(0)
    return float((y.T @ x).ravel() @ (y.T @ x).ravel() / np.linalg.norm(x.T @ x) / np.linalg.norm(y.T @ y))


def unbiased_hsic(x: np.ndarray, y: np.ndarray) -> float:
    """Song et al. (2012), equation 5."""
    n, one = len(x), np.ones(len(x))
    k, m = x @ x.T, y @ y.T
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    middle = (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
    return float((np.trace(k @ m) + middle - 2 / (n - 2) * (one @ k @ m @ one)) / (n * (n - 3)))


def draw(seed: int, n: int, p: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, p))


def test_the_oracle_by_hand() -> None:
    assert linear_cka(A, A, unbiased=False) == pytest.approx(1)
    assert linear_cka(A, A * [1, 2], unbiased=False) == pytest.approx(0.857493, abs=1e-6)
    assert linear_cka(A, A[:, :1], unbiased=False) == pytest.approx(0.707107, abs=1e-6)


@given(st.integers(0, 2**31), st.integers(2, 30), st.integers(1, 8), st.integers(1, 8))
def test_grams_give_what_covariances_give(seed: int, n: int, p: int, q: int) -> None:
    x, y = draw(seed, n, p), draw(seed + 1, n, q)
    assert linear_cka(x, y, unbiased=False) == pytest.approx(by_covariances(x, y))


@given(st.integers(0, 2**31), st.integers(5, 30), st.integers(2, 8))
def test_few_rows_take_the_unbiased_estimator(seed: int, n: int, p: int) -> None:
    x, y = draw(seed, n, p), draw(seed + 1, n, p)
    expected = unbiased_hsic(x, y) / np.sqrt(unbiased_hsic(x, x) * unbiased_hsic(y, y))
    assert linear_cka(x, y) == pytest.approx(expected, abs=1e-9)
    assert linear_cka(x, y) == linear_cka(x, y, unbiased=True)


def test_which_estimator_is_taken() -> None:
    x, y = draw(0, 1000, 3), draw(1, 1000, 5)
    assert linear_cka(x, y) == linear_cka(x, y, unbiased=False)
    assert linear_cka(x[:999], y[:999]) == linear_cka(x[:999], y[:999], unbiased=True)
    wide = draw(2, 1000, 1000)
    assert linear_cka(x, wide) == linear_cka(x, wide, unbiased=True)


def test_unrelated_wide_features_look_alike_to_the_plain_form_only() -> None:
    x, y = draw(0, 50, 2000), draw(1, 50, 2000)
    plain, unbiased = linear_cka(x, y, unbiased=False), linear_cka(x, y)
    assert plain is not None and unbiased is not None
    assert plain > 0.9 and abs(unbiased) < 0.1


@given(st.integers(0, 2**31), st.booleans(), st.floats(1e-3, 1e3))
def test_rotation_scale_shift_and_order_of_the_rows_change_nothing(
    seed: int, unbiased: bool, scale: float
) -> None:
    x, y = draw(seed, 20, 6), draw(seed + 1, 20, 4)
    rotation, _ = np.linalg.qr(draw(seed + 2, 6, 6))
    order = np.random.default_rng(seed).permutation(20)
    changed = linear_cka((scale * (x @ rotation) + 2)[order], y[order], unbiased)
    assert changed == pytest.approx(linear_cka(x, y, unbiased), abs=1e-9)
    assert linear_cka(y, x, unbiased) == pytest.approx(linear_cka(x, y, unbiased))


@given(st.integers(0, 2**31), st.integers(2, 6), st.booleans())
def test_the_mean_is_over_the_pairs(seed: int, models: int, unbiased: bool) -> None:
    features = [draw(seed + i, 12, 3 + i) for i in range(models)]
    pairs = [linear_cka(a, b, unbiased) for a, b in combinations(features, 2)]
    assert mean_cka(features, unbiased) == pytest.approx(np.mean(pairs), abs=1e-9)
    assert mean_cka(reversed(features), unbiased) == pytest.approx(mean_cka(features, unbiased))


def test_where_it_is_not_defined() -> None:
    x = draw(0, 10, 3)
    same, broken = np.full((10, 3), 0.1), x.copy()
    broken[3, 1] = np.inf
    for other in (same, broken, np.zeros((10, 3))):
        assert linear_cka(x, other) is None
        assert linear_cka(x, other, unbiased=False) is None
        assert mean_cka([x, other]) is None
        assert mean_cka([x, other, x]) == pytest.approx(1)
    assert mean_cka([x]) is None and mean_cka([]) is None
    assert linear_cka(x[:3], x[:3]) is None
    assert linear_cka(x[:1], x[:1], unbiased=False) is None


def test_huge_features_do_not_overflow() -> None:
    x = draw(0, 10, 3)
    assert linear_cka(1e200 * x, x) == pytest.approx(1)
