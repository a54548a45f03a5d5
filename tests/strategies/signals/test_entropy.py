"""Von Neumann entropy: hand-computed values, invariances, and what is no entropy at all."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from common.errors import ModelError
from common.models import Head
from strategies.round import Reply, Round
from strategies.signals import Signal
from strategies.signals.alignment import VARIANTS
from strategies.signals.entropy import (
    WIDEST,
    check_layer,
    entropies,
    entropy,
    entropy_of,
    frobenius_entropies,
    head_entropy,
)
from tests.strategies.rounds import entropy_by_svd, head_round, whole_round

SQRT3 = math.sqrt(3)


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ([[1, 0], [0, 1]], math.log(2)),
        ([[1, 1], [1, -1]], math.log(2)),
        ([[2, 0], [0, 1]], 0.8 * math.log(1.25) + 0.2 * math.log(5)),  # p = 4/5, 1/5
        ([[SQRT3, 0], [0, 1]], 0.5623351446),
        ([[1, 0, 1], [0, 1, 1]], 0.5623351446),
        ([[1, 0], [0, 1], [-1, -1]], 0.5623351446),
        (np.eye(3), math.log(3)),
        (np.diag([3, 2, 1]), 0.8304717124),
        (np.diag([2, 1, 1]), 0.8675632285),
        ([[1, 2], [2, 4]], 0.0),  # rank one
        ([[1.0, 2, 3]], 0.0),  # a single row
        (np.zeros((3, 4)), 0.0),
        ([[1e-9, 0], [0, 1e-9]], math.log(2)),  # small, yet an update
        ([[1e-16, 0], [0, 1e-16]], 0.0),  # trace 2e-32: no update
        ([[1e200, 0], [0, 1e200]], math.log(2)),  # squares would overflow
    ],
)
def test_entropy_of_a_matrix(matrix: object, expected: float) -> None:
    assert entropies(np.array([matrix], dtype=np.float64))[0] == pytest.approx(expected, abs=1e-9)


def test_a_rank_one_matrix_of_any_size_has_exactly_no_entropy() -> None:
    rng = np.random.default_rng(0)
    outer = np.stack([np.outer(rng.normal(size=10), rng.normal(size=64)) for _ in range(20)])
    assert (entropies(outer.astype(np.float32).astype(np.float64)) < 1e-10).all()
    assert (entropies(outer) == 0).all()


finite = st.floats(-1e3, 1e3).map(lambda v: round(v, 6))


@given(arrays(np.float64, st.tuples(st.just(1), st.integers(1, 6), st.integers(1, 6)), elements=finite))
def test_entropy_is_the_definition_and_stays_in_range(m: np.ndarray) -> None:
    value = entropies(m)[0]
    assert value == pytest.approx(entropy_by_svd(m[0]), abs=1e-6)
    assert 0 <= value <= math.log(min(m.shape[1:])) + 1e-9


@given(
    arrays(np.float64, (1, 4, 7), elements=finite),
    st.floats(1e-3, 1e3),
    st.integers(0, 2**32 - 1),
)
def test_scale_sign_transposition_and_rotation_change_nothing(m: np.ndarray, a: float, seed: int) -> None:
    value = entropies(m)[0]
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(7, 7)))[0]
    for same in (a * m, -5 * m, m.transpose(0, 2, 1), m @ rotation):
        assert entropies(same)[0] == pytest.approx(value, abs=1e-6)


def test_noise_has_the_entropy_that_random_matrix_theory_says() -> None:
    noise = np.random.default_rng(1).normal(size=(20, 10, 64))
    assert entropies(noise).mean() == pytest.approx(math.log(10) - 10 / (2 * 64), abs=0.01)  # Page, 1993


def test_two_classes_turn_the_signal_off_with_a_reason() -> None:
    reading = entropy(head_round({"a": np.eye(2, 5), "b": np.ones((2, 5))}), np.ones(2))
    assert np.isnan(reading.values).all()
    assert "2 x 5" in reading.unavailable


def test_a_round_of_rank_one_or_zero_updates_turns_the_signal_off() -> None:
    reading = entropy(head_round({"a": np.ones((3, 4)), "b": np.zeros((3, 4))}), np.ones(2))
    assert np.isnan(reading.values).all() and "rank one" in reading.unavailable


def test_a_zero_update_among_others_has_entropy_zero() -> None:
    reading = entropy(head_round({"a": np.eye(3, 4), "b": np.zeros((3, 4))}), np.ones(2))
    assert reading.unavailable == ""
    assert reading.values == pytest.approx([math.log(3), 0.0])


def test_one_by_one_convolution_heads_are_flattened() -> None:
    kernel = np.arange(12.0).reshape(3, 4, 1, 1)
    reading = entropy(head_round({"a": kernel}), np.ones(1))
    assert reading.values[0] == pytest.approx(entropy_by_svd(kernel.reshape(3, 4)), abs=1e-9)


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ([[1, 0], [0, 1]], 0.4901290717),  # q = 1/sqrt 2 twice
        ([[1, 1], [1, -1]], 0.4901290717),
        ([[2, 0], [0, 1]], 0.3729848457),
        ([[SQRT3, 0], [0, 1]], 0.4140475507),
        ([[1, 0, 1], [0, 1, 1]], 0.4140475507),
        (np.eye(3), 0.9514261509),
        (np.diag([3, 2, 1]), 0.6843352872),
        (np.diag([2, 1, 1]), 0.7367906122),
        ([[1, 2], [2, 4]], 0.0),
        (np.zeros((3, 4)), 0.0),
    ],
)
def test_the_frobenius_measure(matrix: object, expected: float) -> None:
    assert frobenius_entropies(np.array([matrix], dtype=np.float64))[0] == pytest.approx(expected, abs=1e-9)


def test_the_frobenius_measure_can_reverse_the_order_of_entropies() -> None:
    one, other = (np.diag(np.sqrt(x))[None] for x in ([1.0, 10, 10], [2.0, 2, 9]))
    assert (entropies(one)[0], entropies(other)[0]) == pytest.approx((0.851584, 0.830518), abs=1e-6)
    frobenius = frobenius_entropies(one)[0], frobenius_entropies(other)[0]
    assert frobenius == pytest.approx((0.679459, 0.702622), abs=1e-6)


def test_another_layer_can_be_read_by_name() -> None:
    kernel = np.arange(24.0).reshape(3, 2, 2, 2)
    updates = {"head.weight": np.eye(3, 4), "conv.weight": kernel, "conv.bias": np.ones(3)}
    round_ = whole_round({"a": updates, "b": updates})
    values = entropy_of("conv.weight")(round_, np.ones(2)).values
    assert values == pytest.approx([entropy_by_svd(kernel.reshape(3, 8))] * 2, abs=1e-9)
    assert entropy_of("head.weight")(round_, np.ones(2)).values == pytest.approx([math.log(3)] * 2)


@pytest.mark.parametrize("name", ["conv.weigth", "conv.bias", "nothing"])
def test_a_name_that_is_no_weight_is_refused(name: str) -> None:
    round_ = whole_round({"a": {"conv.weight": np.eye(3), "conv.bias": np.ones(3)}})
    with pytest.raises(ModelError, match=f'entropy-layer "{name}" must be a trainable parameter of two'):
        entropy_of(name)(round_, np.ones(1))


def test_a_layer_of_one_row_has_no_entropy() -> None:
    reading = entropy_of("w")(whole_round({"a": {"w": np.ones((1, 5))}}), np.ones(1))
    assert np.isnan(reading.values).all() and "single row" in reading.unavailable


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("conv.weigth", 'there is none. Did you mean "conv.weight"?'),
        ("bias", "it has shape (3,). It takes one of conv.weight"),
    ],
)
def test_the_sentence_for_a_layer_that_cannot_be_read(name: str, hint: str) -> None:
    with pytest.raises(ModelError) as error:
        check_layer(name, {"conv.weight": np.ones((3, 2, 2)), "bias": np.ones(3)})
    assert str(error.value).endswith(hint)
    check_layer("conv.weight", {"conv.weight": np.ones((3, 2, 2))})


def test_the_head_can_be_read_with_the_other_measure() -> None:
    reading = head_entropy(frobenius_entropies)(head_round({"a": np.diag([3.0, 2, 1])}), np.ones(1))
    assert reading.values == pytest.approx([0.6843352872])


@pytest.mark.parametrize("signal", [entropy, entropy_of("head.weight")])
def test_a_head_that_is_too_wide_is_refused_with_what_to_do(signal: Signal) -> None:
    huge = np.broadcast_to(np.float32(1), (WIDEST + 1, WIDEST + 2))
    head = Head("head.weight", None, huge.shape)
    round_ = Round(1, {"head.weight": huge}, head, (Reply("a", {"head.weight": huge}, {}, 1),))
    reading = signal(round_, np.ones(1))
    assert np.isnan(reading.values).all()
    assert "4097 x 4098" in reading.unavailable and "key entropy-layer" in reading.unavailable


def test_an_entropy_of_a_large_head_is_the_definition() -> None:
    m = np.random.default_rng(0).normal(size=(300, 400)) * np.geomspace(1, 1e-3, 400)
    assert entropies([m.astype(np.float32)])[0] == pytest.approx(entropy_by_svd(m), rel=1e-6)


@pytest.mark.parametrize("signal", [entropy, *VARIANTS.values()])
def test_clients_are_read_one_after_the_other(signal: Signal) -> None:
    classes, width, clients = 20, 4096, 40
    draw = np.random.default_rng(0).standard_normal((clients, classes, width), dtype=np.float32)
    replies = tuple(Reply(f"c{i:02}", {"w": x}, {}, 1) for i, x in enumerate(draw))
    round_ = Round(1, {"w": draw[0]}, Head("w", None, (classes, width)), replies)
    tracemalloc.start()
    signal(round_, np.ones(clients))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * classes * width * 8  # a few float64 copies of one client's head, not 40
