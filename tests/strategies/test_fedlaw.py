"""FedLAW: its steps by hand, whom it weighs down, and where there is nothing to learn."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from common.config import RunConfig
from common.errors import ConfigError
from common.params import Arrays
from strategies import presets
from strategies.fedlaw import FedLaw, Proxy
from strategies.recipe import RecipeState
from strategies.rescale import resized
from strategies.round import Round
from strategies.scorers import ScorerState, Scores
from tests.strategies.rounds import whole_round

CENTRES = np.eye(3, 4)
Y = np.arange(60) % 3
X = torch.from_numpy((2 * CENTRES[Y] + np.random.default_rng(7).normal(size=(60, 4))).astype(np.float32))
LABELS = torch.from_numpy(Y)

# Cross-entropy of a linear model on twelve batches of five rows.
BLOBS = Proxy(12, lambda p, _, i: F.cross_entropy(X[5 * i : 5 * i + 5] @ p["w"].T, LABELS[5 * i : 5 * i + 5]))


def towards(size: float) -> Proxy:
    """A loss that is smallest where the one parameter is ``size``."""
    return Proxy(1, lambda parameters, buffers, batch: (parameters["w"] - size).square().sum())


def scores(scorer: FedLaw, round_: Round) -> Scores:
    return scorer.score(ScorerState(), {}, round_, round_.clients)[1]


def one_by_one(updates: dict[str, float], start: float = 1.0, **labels: tuple[int, ...]) -> Round:
    arrays: dict[str, Arrays] = {name: {"w": np.array([[d]])} for name, d in updates.items()}
    return whole_round(arrays, {"w": np.array([[start]])}, **labels)


def linear_round(noise: float) -> Round:
    """Two nodes that move towards a good model, and one that sends noise."""
    draw = np.random.default_rng(5)
    good = CENTRES.astype(np.float32)
    updates = {name: good + 0.1 * draw.normal(size=(3, 4)).astype(np.float32) for name in "ab"}
    updates["z"] = (noise * draw.normal(size=(3, 4))).astype(np.float32)
    return whole_round({n: {"w": u} for n, u in updates.items()}, {"w": np.zeros((3, 4), np.float32)})


def test_one_step_by_hand() -> None:
    # Models 2 and 0 with shares 3/4 and 1/4: mean 1.5, loss (1.5 - 1)^2. Adam's first step is its rate,
    # against the sign of the gradient: down for a, up for b, down for the size.
    round_ = one_by_one({"a": 1.0, "b": -1.0}, a=(30,), b=(10,))
    found = scores(FedLaw(towards(1.0), learning_rate=0.1, epochs=1), round_)
    lambdas = np.exp([math.log(0.75) - 0.1, math.log(0.25) + 0.1])
    assert found.values == pytest.approx(lambdas / lambdas.sum(), rel=1e-6)
    assert found.size == pytest.approx(math.exp(-0.1), rel=1e-6)


def test_where_nothing_can_be_gained_the_shares_of_examples_weigh() -> None:
    found = scores(FedLaw(towards(1.0)), one_by_one({"a": 1.0, "b": -1.0}, a=(20,), b=(20,)))
    assert found.values.tolist() == [0.5, 0.5] and found.size == 1.0


def test_who_sends_noise_weighs_less_and_the_model_loses_less() -> None:
    round_ = linear_round(noise=3.0)
    found = scores(FedLaw(BLOBS), round_)
    assert found.values.sum() == pytest.approx(1) and found.values[2] < 0.1 < found.values[:2].min()
    models = np.stack([reply.update["w"] for reply in round_.replies])

    def loses(weights: np.ndarray) -> float:
        w = torch.from_numpy(np.tensordot(weights, models, 1).astype(np.float32))
        return float(F.cross_entropy(X @ w.T, LABELS))

    assert loses(found.size * found.values) < loses(found.values) < loses(np.full(3, 1 / 3))


def test_the_same_round_gives_the_same_bits() -> None:
    round_ = linear_round(noise=1.0)
    first, again = (scores(FedLaw(BLOBS), round_) for _ in range(2))
    assert first.values.tolist() == again.values.tolist() and first.size == again.size


def test_a_lone_client_weighs_one_and_its_model_finds_its_size() -> None:
    found = scores(FedLaw(towards(1.0), learning_rate=0.02, epochs=400), one_by_one({"a": 1.0}))
    assert found.values.tolist() == [1.0]
    assert found.size == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("huge", [1e300, 1.7e308])
def test_without_finite_losses_the_examples_weigh(huge: float) -> None:
    found = scores(FedLaw(towards(1.0)), one_by_one({"a": huge, "b": -1.0}, start=huge, a=(30,), b=(10,)))
    assert found.values == pytest.approx([0.75, 0.25]) and found.size == 1.0


def test_buffers_reach_the_loss_as_the_mean_over_nodes() -> None:
    seen: list[float] = []

    def loss(parameters: dict[str, torch.Tensor], buffers: Arrays, batch: int) -> torch.Tensor:
        seen.append(float(buffers["mean"]))
        return parameters["w"].sum()

    round_ = one_by_one({"a": 1.0, "b": 2.0})
    for reply, mean in zip(round_.replies, (1.0, 4.0), strict=True):
        reply.buffers["mean"] = np.array(mean, np.float32)
    scores(FedLaw(Proxy(2, loss), epochs=3), round_)
    assert seen == [2.5] * 6


def test_the_size_is_of_the_whole_model() -> None:
    update = resized({"w": np.array([1.0, -2.0])}, {"w": np.array([0.5, 1.0])}, 0.9)
    assert update["w"] == pytest.approx([0.9 * 1.5 - 1.0, 0.9 * -1.0 + 2.0])


def test_the_next_model_is_the_sized_mean_and_observing_leaves_it_alone() -> None:
    round_ = linear_round(noise=1.0)
    learnt = scores(FedLaw(BLOBS), round_)
    mean = sum(c * r.update["w"] for c, r in zip(learnt.values, round_.replies, strict=True))
    expected = {"weight": learnt.size * mean, "observe": np.mean([r.update["w"] for r in round_.replies], 0)}
    for mode, model in expected.items():
        keys = {"weighting": "fedlaw", "proxy_data": "digits", "contribution": mode}
        recipe = presets.build(RunConfig.model_validate(keys), BLOBS)
        _, outcome = recipe.run(RecipeState(), round_, round_.clients)
        assert outcome.model["w"] == pytest.approx(model, abs=1e-6)
        assert outcome.scores is not None and outcome.scores.values == pytest.approx(learnt.values)


def test_it_takes_data() -> None:
    with pytest.raises(ConfigError, match="proxy data; got nothing"):
        presets.build(RunConfig.model_validate({"weighting": "fedlaw", "proxy_data": "digits"}))
