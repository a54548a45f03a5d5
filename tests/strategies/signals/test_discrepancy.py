"""Label discrepancy: values by hand for each metric, and what it needs."""

import numpy as np
import pytest

from strategies.signals.discrepancy import METRICS, discrepancy, divergence
from tests.strategies.rounds import whole_round

SHARES, UNIFORM = np.array([[0.5, 0.5], [1, 0], [0.25, 0.75]]), np.array([0.5, 0.5])


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("l2", [0, 0.7071067812, 0.3535533906]),
        ("l1", [0, 1, 0.5]),
        ("cosine", [0, 1 - 0.7071067812, 1 - 1 / np.sqrt(1.25)]),
        ("kl", [0, 0.8412396714, 0.1587603286]),
    ],
)
def test_metrics_by_hand(metric: str, expected: list[float]) -> None:
    assert METRICS[metric](SHARES, UNIFORM) == pytest.approx(expected, abs=1e-7)


def test_divergence_by_hand() -> None:
    assert divergence(SHARES, UNIFORM) == pytest.approx([0, np.log(2), 0.1308120], abs=1e-7)


def test_a_class_that_the_target_lacks_is_not_infinitely_far() -> None:
    far = divergence(np.array([[0.5, 0.5]]), np.array([1.0, 0]))
    assert np.isfinite(far).all() and far[0] > 10


def test_clients_on_target_have_none() -> None:
    assert METRICS["kl"](np.full((2, 4), 0.25), np.full(4, 0.25)).tolist() == [0, 0]


def labelled(**counts: tuple[int, ...]):  # type: ignore[no-untyped-def]
    return whole_round({name: {"w": np.ones((2, 2))} for name in counts}, **counts)


def test_the_signal_counts_shares_not_rows() -> None:
    round_ = labelled(a=(1, 1), b=(300, 0), c=(10, 30))
    assert discrepancy("l2")(round_, np.ones(3)).values == pytest.approx([0, 0.7071068, 0.3535534])
    target = np.array([0.25, 0.75])
    assert discrepancy("l1", target)(round_, np.ones(3)).values == pytest.approx([0.5, 1.5, 0])


def test_a_client_without_counts_is_named() -> None:
    round_ = whole_round({"a": {"w": np.ones((2, 2))}, "b": {"w": np.ones((2, 2))}}, a=(1, 1))
    with pytest.raises(ValueError, match='client "b" gave no label counts'):
        discrepancy()(round_, np.ones(2))
