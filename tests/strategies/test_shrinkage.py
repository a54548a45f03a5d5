"""FedLWS: the worked example, and the layers that keep their size."""

import numpy as np
import pytest

from strategies.aggregate import weighted_sum
from strategies.shrinkage import shrunk
from tests.strategies.rounds import whole_round

# w = (3, 4); models (3.3, 4.4) and (3, 4.2).
W = np.array([[3.0, 4]])
ONE, TWO = np.array([[0.3, 0.4]]), np.array([[0.0, 0.2]])
HALF = np.array([0.5, 0.5])


def test_the_worked_example() -> None:
    round_ = whole_round({"a": {"w": ONE}, "b": {"w": TWO}}, {"w": W})
    update = shrunk(weighted_sum, 0.03)(round_, HALF)
    assert W + update["w"] == pytest.approx(np.array([[3.1478883323, 4.2971174060]]), abs=1e-9)


def test_clients_that_disagree_more_shrink_it_more_up_to_a_limit() -> None:
    def size(spread: float, beta: float) -> float:
        round_ = whole_round({"a": {"w": ONE + spread}, "b": {"w": ONE - spread}}, {"w": W})
        return float(np.linalg.norm(W + shrunk(weighted_sum, beta)(round_, HALF)["w"]))

    assert size(0.0, 0.03) > size(1.0, 0.03) > size(5.0, 0.03) == pytest.approx(size(50.0, 0.03))
    # |w| = 5, G = 0.5 and the largest tau, 0.2.
    assert size(50.0, 0.03) == pytest.approx(5 / (5 + 0.2 * 0.5) * 5.5)


def test_biases_zero_layers_and_lone_clients_are_not_shrunk() -> None:
    updates = {"w": ONE, "b": np.array([0.3, 0.4]), "zero": TWO}
    model = {"w": W, "b": np.array([3.0, 4]), "zero": np.zeros((1, 2))}
    round_ = whole_round({"a": updates, "b": updates}, model)
    update, plain = shrunk(weighted_sum)(round_, HALF), weighted_sum(round_, HALF)
    assert (update["b"] == plain["b"]).all() and (update["zero"] == plain["zero"]).all()
    assert (update["w"] != plain["w"]).all()
    alone = whole_round({"a": updates}, model)
    assert (shrunk(weighted_sum)(alone, np.ones(1))["w"] == ONE).all()


def test_the_spread_is_a_mean_over_clients_whose_distances_differ() -> None:
    draw = np.random.default_rng(0)
    model = {"w": draw.normal(size=(3, 4))}
    moves = {
        name: {"w": size * draw.normal(size=(3, 4))} for name, size in (("a", 0.1), ("b", 0.5), ("c", 1.5))
    }
    weights = np.array([0.2, 0.5, 0.3])
    ours = shrunk(weighted_sum, 0.05)(whole_round(moves, model), weights)["w"]
    centre = sum(one["w"] for one in moves.values()) / 3
    spread = sum(np.linalg.norm(one["w"] - centre) for one in moves.values()) / 3
    assert 0.01 < 0.05 * spread < 0.2
    mean = sum(w * one["w"] for w, one in zip(weights, moves.values(), strict=True))
    size = np.linalg.norm(model["w"])
    expected = size / (size + 0.05 * spread * np.linalg.norm(mean)) * (model["w"] + mean)
    assert model["w"] + ours == pytest.approx(expected)
