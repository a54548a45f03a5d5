"""What noise hides, against the definition, integrated."""

from math import exp, log, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import dblquad, quad
from scipy.stats import norm

from common.privacy import epsilon


def test_one_round_against_the_definition() -> None:
    """delta is the integral of max(0, p - e^eps q), of densities two norms apart."""
    eps = epsilon(noise=4.0, rounds=1, delta=1e-3)
    p, q = norm(0, 4), norm(2, 4)
    # p exceeds e^eps q below the point where their ratio is e^eps.
    edge = 1 - eps * 16 / 2
    delta, _ = quad(lambda x: p.pdf(x) - exp(eps) * q.pdf(x), -60, edge)
    assert delta == pytest.approx(1e-3, rel=1e-5)


def test_two_rounds_against_the_definition() -> None:
    eps = epsilon(noise=5.0, rounds=2, delta=1e-2)
    p, q = norm(0, 5), norm(2, 5)

    def gain(y: float, x: float) -> float:
        return p.pdf(x) * p.pdf(y) - exp(eps) * q.pdf(x) * q.pdf(y)

    delta, _ = dblquad(gain, -40, 40, -40, lambda x: 2 - eps * 25 / 2 - x)
    assert delta == pytest.approx(1e-2, rel=1e-4)


def test_a_published_value() -> None:
    """Balle and Wang's noise for epsilon 1, delta 1e-5 and sensitivity 1 is 3.73; here the sensitivity is 2."""
    assert epsilon(noise=2 * 3.7306, rounds=1) == pytest.approx(1.0, abs=1e-4)


def test_rounds_count_as_less_noise() -> None:
    assert epsilon(3.0, 9) == pytest.approx(epsilon(1.0, 1), rel=1e-9)


@given(st.floats(0.05, 100), st.integers(1, 5000), st.sampled_from([1e-9, 1e-5, 0.1]))
def test_it_is_finite_and_moves_the_right_way(noise: float, rounds: int, delta: float) -> None:
    eps = epsilon(noise, rounds, delta)
    assert 0 <= eps < 1e9
    assert epsilon(noise, rounds + 1, delta) >= eps - 1e-6
    assert epsilon(noise * 1.5, rounds, delta) <= eps + 1e-6
    # The simple bound by Rényi divergences is never better.
    mu = 2 * sqrt(rounds) / noise
    assert eps <= mu**2 / 2 + mu * sqrt(2 * -log(delta)) + 1e-6


def test_weak_delta_alone_can_cover_it() -> None:
    assert epsilon(noise=1e6, rounds=1, delta=1e-5) == 0.0
