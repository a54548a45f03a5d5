"""The first-layer rank test: ranks by construction, the rule's edges, and when it keeps silent."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import RunConfig, Value
from common.models import Head
from strategies.first_layer_rank import WIDEST, RankTest, first_layer_rank, numeric_rank
from strategies.round import Reply, Round

HEAD = Head("fc2.weight", None, (3, 40))
MODEL = {"fc1.weight": np.zeros((40, 30), np.float32), "fc2.weight": np.zeros((3, 40), np.float32)}


def of_rank(rank: int, seed: int = 0, shape: tuple[int, int] = (40, 30)) -> np.ndarray:
    """A matrix with ``rank`` singular values of 1."""
    draw = np.random.default_rng(seed)
    left, _ = np.linalg.qr(draw.normal(size=(shape[0], rank)))
    right, _ = np.linalg.qr(draw.normal(size=(shape[1], rank)))
    return left @ right.T


def round_of(ranks: dict[str, int], claims: dict[str, int] | None = None) -> Round:
    replies = [
        Reply(name, MODEL | {"fc1.weight": of_rank(rank, i)}, {}, (claims or {}).get(name, 100))
        for i, (name, rank) in enumerate(sorted(ranks.items()))
    ]
    return Round(1, MODEL, HEAD, tuple(replies))


@given(st.integers(0, 8), st.integers(0, 99), st.sampled_from([1e-30, 1.0, 1e30]))
def test_the_rank_is_that_of_the_construction_at_any_scale(rank: int, seed: int, scale: float) -> None:
    m = of_rank(rank, seed, (9, 12)) * scale
    assert numeric_rank(m) == numeric_rank(m.T) == rank
    assert numeric_rank(m) == np.linalg.matrix_rank(m, tol=1e-3 * scale)


def test_a_singular_value_counts_above_a_thousandth_of_the_largest() -> None:
    assert numeric_rank(np.diag([1.0, 0.0011, 0.0009])) == 2


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 99))
def test_training_on_few_rows_keeps_the_rank_low_however_long(rows: int, epochs: int, seed: int) -> None:
    """Full-batch gradient descent with momentum on a two-layer net, by hand."""
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(rows, 30)), draw.normal(size=(rows, 3))
    w1, w2 = draw.normal(size=(40, 30)) / 6, draw.normal(size=(3, 40)) / 6
    start, speed = w1.copy(), np.zeros_like(w1)
    for _ in range(epochs):
        hidden = np.maximum(x @ w1.T, 0)
        error = (hidden @ w2.T - y) / rows
        speed = 0.9 * speed + ((error @ w2) * (hidden > 0)).T @ x
        w1, w2 = w1 - 0.05 * speed, w2 - 0.05 * error.T @ hidden
    assert numeric_rank(w1 - start) <= rows


def test_the_one_with_half_the_rank_of_its_peers_is_flagged_with_evidence() -> None:
    flags = RankTest("fc1.weight").look({}, round_of({"a": 20, "b": 22, "c": 9, "d": 24}))[1]
    assert list(flags) == ["c"]
    flag = flags["c"]
    assert (flag.test, flag.value, flag.threshold) == ("first-layer-rank", 9, 10.5)
    assert "rank 9" in flag.text and "peers 21" in flag.text and "claims 100" in flag.text


def test_a_rank_that_was_high_once_clears_a_client_for_good() -> None:
    """Rows that the model has learnt give next to no gradient, and honest ranks fall with the rounds."""
    test = RankTest("fc1.weight")
    best, flags = test.look({}, round_of({"a": 20, "b": 22, "c": 18, "d": 8}))
    assert best == {"a": 20, "b": 22, "c": 18, "d": 8} and list(flags) == ["d"]
    best, flags = test.look(best, round_of({"a": 20, "b": 16, "c": 5, "d": 5}))
    assert best == {"a": 20, "b": 22, "c": 18, "d": 8} and list(flags) == ["d"]
    assert (flags["d"].value, flags["d"].threshold) == (8, 9.5)
    assert "rank 8 at most" in flags["d"].text and "peers 19" in flags["d"].text


def test_a_node_that_comes_late_is_compared_with_the_round_as_well() -> None:
    best, _ = RankTest("fc1.weight").look({}, round_of({"a": 20, "b": 22, "c": 24}))
    late = round_of({"a": 9, "b": 8, "c": 9, "d": 7})
    assert RankTest("fc1.weight").look(best, late)[1] == {}
    poor = round_of({"a": 9, "b": 8, "c": 9, "d": 3})
    assert list(RankTest("fc1.weight").look(best, poor)[1]) == ["d"]


def test_absent_clients_keep_their_rank_and_typical_are_those_who_are_there() -> None:
    best, _ = RankTest("fc1.weight").look({"gone": 29}, round_of({"a": 4, "b": 4, "c": 4}))
    assert best == {"gone": 29, "a": 4, "b": 4, "c": 4}


def test_a_node_with_few_examples_that_says_so_is_let_be() -> None:
    ranks = {"a": 20, "b": 22, "c": 5, "d": 24}
    assert RankTest("fc1.weight").look({}, round_of(ranks, {"c": 10}))[1] == {}
    assert list(RankTest("fc1.weight").look({}, round_of(ranks, {"c": 11}))[1]) == ["c"]


def test_a_cohort_of_low_ranks_or_of_two_says_nothing() -> None:
    test = RankTest("fc1.weight")
    assert test.look({}, round_of({"a": 3, "b": 3, "c": 4}))[1] == {}
    assert test.look({"c": 9}, round_of({"a": 1, "b": 20})) == ({"c": 9}, {})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"weight-decay": 0.1}, "weight decay"),
        ({"amp": "bf16"}, "mixed precision"),
        ({"contribution": "off"}, "scores nobody"),
        ({"weighting": "examples"}, "scores nobody"),
    ],
)
def test_a_run_that_breaks_the_rule_is_not_tested_and_says_why(change: dict[str, Value], says: str) -> None:
    test = first_layer_rank(RunConfig.read(change, "the test"), MODEL, HEAD)
    assert says in test.unavailable
    assert test.look({}, round_of({"a": 20, "b": 20, "c": 1}))[1] == {}


def test_another_local_rule_is_not_tested() -> None:
    config = RunConfig.read({"algorithm": "fedsam"}, "the test")
    assert "fedsam adds" in first_layer_rank(config, MODEL, HEAD).unavailable


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"conv.weight": np.zeros((4, 3, 3, 3)), "fc2.weight": np.zeros((3, 40))}, "not that of a dense"),
        ({"fc2.weight": np.zeros((3, 40))}, "no layer before its head"),
        ({"a": np.zeros((WIDEST + 1, WIDEST + 1), np.int8), "fc2.weight": np.zeros((3, 40))}, "wider than"),
    ],
)
def test_a_model_without_a_dense_first_layer_is_not_tested(model: dict[str, np.ndarray], says: str) -> None:
    assert says in first_layer_rank(RunConfig(), model, HEAD).unavailable


def test_the_first_weight_is_the_first_with_two_axes_in_the_models_order() -> None:
    model = {"scale": np.zeros(3)} | MODEL
    test = first_layer_rank(RunConfig.read({"algorithm": "fedprox", "momentum": 0.9}, "t"), model, HEAD)
    assert (test.layer, test.unavailable) == ("fc1.weight", "")
