"""The rank-adaptive Kalman filter: worked examples, the textbook filter, partial participation."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.kalman import KalmanState, RankAdaptiveKalman, rank_correlation
from tests.strategies.rounds import kalman_by_matrices

ABC = ("a", "b", "c")
S, G = np.array([0.35, 0.25, 0.40]), np.array([0.45, 0.20, 0.35])


def state(mean: list[float], variance: float, names: tuple[str, ...] = ABC) -> KalmanState:
    return KalmanState(dict(zip(names, mean, strict=True)), dict.fromkeys(names, variance))


def step(kalman: RankAdaptiveKalman, before: KalmanState, s: np.ndarray = S, g: np.ndarray = G):  # type: ignore[no-untyped-def]
    return kalman.update(kalman.predict(before, ABC), ABC, {"entropy": s, "alignment": g})


def test_literal_mode() -> None:
    after, noise = step(RankAdaptiveKalman(beta=1), state([0.30, 0.33, 0.37], 0.9999))
    assert noise == pytest.approx({"entropy": 0.501, "alignment": 1.501})  # rho 1/2 and -1/2
    assert list(after.mean.values()) == pytest.approx([0.3545388328, 0.2627487535, 0.3827124137], abs=1e-9)
    assert list(after.variance.values()) == pytest.approx([0.2730576351] * 3, abs=1e-9)


def test_trust_grows_slowly_with_a_small_beta() -> None:
    kalman = RankAdaptiveKalman(beta=0.1)
    first, noise = step(kalman, state([0.30, 0.33, 0.37], 1.0))
    assert noise == pytest.approx({"entropy": 0.951, "alignment": 1.051})
    assert list(first.mean.values()) == pytest.approx([0.3650362934, 0.2607956531, 0.3741680534], abs=1e-9)
    assert first.variance["a"] == pytest.approx(0.3330114770, abs=1e-9)
    second, _ = step(kalman, first)
    assert second.trust == pytest.approx({"entropy": 0.145, "alignment": 0.005})
    assert list(second.mean.values()) == pytest.approx([0.3781279134, 0.2465613734, 0.3753107132], abs=1e-9)
    assert second.variance["a"] == pytest.approx(0.1932651576, abs=1e-9)


def test_new_clients_start_equal_and_trust_nothing_yet() -> None:
    after, noise = step(RankAdaptiveKalman(), KalmanState())
    assert noise == pytest.approx({"entropy": 1.001, "alignment": 1.001})
    assert list(after.mean.values()) == pytest.approx([0.3777644498, 0.2611327691, 0.3611027811], abs=1e-9)
    assert after.variance["b"] == pytest.approx(0.3335666067, abs=1e-9)


def test_a_late_client_starts_the_same_in_whatever_order_names_stand() -> None:
    mean = {"b": 0.1, "c": 0.15, "a": 0.05}  # whose sum depends on the order in its last bit
    variance = dict.fromkeys(mean, 1.0)
    starts = [
        RankAdaptiveKalman().predict(KalmanState(dict(order), variance), ["new"]).mean["new"]
        for order in permutations(mean.items())
    ]
    assert len(set(starts)) == 1


def test_partial_participation_scales_measurements_to_the_cohorts_mass() -> None:
    kalman = RankAdaptiveKalman(beta=1)
    names = ("a", "b", "c", "d")
    predicted = kalman.predict(state([0.1, 0.2, 0.4, 0.3], 1.0, names), names)
    s, g = np.array([1.2, 0.9, 1.5]), np.array([0.8, 0.6, 0.9])
    after, noise = kalman.update(predicted, ("a", "b", "d"), {"entropy": s, "alignment": g})
    assert noise == pytest.approx({"entropy": 0.501, "alignment": 0.501})
    assert [after.mean[c] for c in "abd"] == pytest.approx(
        [0.1834465543, 0.1626228975, 0.2539305481], abs=1e-9
    )
    assert after.variance["a"] == pytest.approx(0.2003238845, abs=1e-9)
    assert (after.mean["c"], after.variance["c"]) == pytest.approx(
        (0.4, 1.0001)
    )  # the absent one's band widens


def test_a_late_client_starts_at_the_mean_of_the_known() -> None:
    later = RankAdaptiveKalman(q=0.5, p0=2.0).predict(state([0.2, 0.4, 0.6], 1.0), ("a", "new"))
    assert later.mean["new"] == pytest.approx(0.4)
    assert later.variance == pytest.approx({"a": 1.5, "b": 1.5, "c": 1.5, "new": 2.5})


def test_a_signal_without_positive_sum_is_left_out() -> None:
    kalman = RankAdaptiveKalman()
    predicted = kalman.predict(KalmanState(), ABC)
    alone, noise = kalman.update(predicted, ABC, {"entropy": np.zeros(3), "alignment": G})
    assert list(noise) == ["alignment"]
    assert alone == kalman.update(predicted, ABC, {"alignment": G})[0]


def test_a_missing_measurement_is_left_out_for_its_client_only() -> None:
    kalman = RankAdaptiveKalman()
    predicted = kalman.predict(KalmanState(), ABC)
    after, _ = kalman.update(
        predicted, ABC, {"entropy": np.array([0.5, np.nan, 0.5]), "alignment": np.ones(3)}
    )
    assert after.variance["b"] > after.variance["a"]
    assert after.mean["a"] == pytest.approx(1 / 3) and after.mean["b"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("a", "b", "rho"),
    [
        ([1, 2, 3], [10, 20, 30], 1),
        ([1, 2, 3], [3, 2, 1], -1),
        ([1, 2, 3], [2, 1, 3], 0.5),
        ([1, 1, 2, 3], [1, 2, 3, 4], 0.9486832981),  # average ranks 1.5 1.5 3 4
        ([1, 2], [1, 2], 0),
        ([1, 1, 1], [1, 2, 3], 0),
    ],
)
def test_rank_correlation(a: list[float], b: list[float], rho: float) -> None:
    assert rank_correlation(np.array(a, float), np.array(b, float)) == pytest.approx(rho)


positive = st.lists(st.floats(0.01, 10), min_size=4, max_size=4)


@given(positive, positive, positive, positive)
def test_it_is_the_textbook_filter_and_a_convex_combination(
    x: list[float], p: list[float], s: list[float], g: list[float]
) -> None:
    names = tuple("abcd")
    kalman = RankAdaptiveKalman(beta=1)
    before = KalmanState(dict(zip(names, x, strict=True)), dict(zip(names, p, strict=True)))
    signals = {"s": np.array(s), "g": np.array(g)}
    after, noise = kalman.update(kalman.predict(before, names), names, signals)
    z = np.stack([np.array(v) / sum(v) * sum(x) for v in (s, g)])
    mean, variance = kalman_by_matrices(np.array(x), np.array(p), z, np.array(list(noise.values())), kalman.q)
    assert list(after.mean.values()) == pytest.approx(mean, rel=1e-6)
    assert list(after.variance.values()) == pytest.approx(variance, rel=1e-6)
    low, high = np.minimum(x, z.min(axis=0)), np.maximum(x, z.max(axis=0))
    assert ((mean >= low - 1e-9) & (mean <= high + 1e-9)).all()


@given(st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=15))
def test_equal_clients_stay_equal_whoever_takes_part(cohorts: list[set[int]]) -> None:
    kalman, now = RankAdaptiveKalman(), KalmanState()
    names = tuple("abcdef")
    for cohort in cohorts:
        present = tuple(names[i] for i in sorted(cohort))
        now = kalman.predict(now, names)
        if len(present) > 1:
            now, _ = kalman.update(
                now, present, {"s": np.full(len(present), 0.7), "g": np.ones(len(present))}
            )
    assert list(now.mean.values()) == pytest.approx([1 / 6] * 6)


@given(st.lists(st.lists(st.floats(0, 5), min_size=3, max_size=3), min_size=1, max_size=8))
def test_with_equal_variances_the_sum_of_scores_is_kept(rounds: list[list[float]]) -> None:
    kalman, now = RankAdaptiveKalman(), KalmanState()
    for values in rounds:
        now = kalman.predict(now, ABC)
        before = now.variance["a"]
        now, noise = kalman.update(now, ABC, {"s": np.array(values)})
        assert (now.variance["a"] < before) == bool(noise)
        assert sum(now.mean.values()) == pytest.approx(1.0)
        assert min(now.mean.values()) >= 0


def test_what_differs_by_rounding_alone_is_a_tie() -> None:
    """Ranks would make a whole order of the last bits, which a change of the order of sums turns round."""
    tied = np.array([0.3, 0.1 + 0.2, 0.3 - 1e-16, 0.7])
    assert rank_correlation(tied, np.array([4.0, 1.0, 2.0, 3.0])) == pytest.approx(
        rank_correlation(np.array([0.3, 0.3, 0.3, 0.7]), np.array([4.0, 1.0, 2.0, 3.0]))
    )
    assert rank_correlation(tied[:3], np.array([1.0, 2.0, 3.0])) == 0.0
    assert rank_correlation(np.array([1e-30, 2e-30, 3e-30]), np.array([1.0, 2.0, 3.0])) == pytest.approx(1)
