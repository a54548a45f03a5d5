"""What each node receives: ShapFed's mixtures and CGSV's rewards, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import RunConfig
from common.params import Arrays
from strategies import presets
from strategies.recipe import Recipe, RecipeState
from strategies.reward import Personal, Personalised, Sparsified, largest, reward_shares, same_model
from strategies.scorers import ScorerState
from strategies.weighting import uniform
from tests.strategies.rounds import whole_round

MODEL = {"w": np.array([[10.0, 20.0]])}
WEIGHTS = np.array([0.75, 0.25])
FIRST = whole_round({"a": {"w": np.array([[1.0, 0]])}, "b": {"w": np.array([[0, 4.0]])}}, MODEL)


def test_a_node_gets_its_own_model_and_its_share_of_the_servers() -> None:
    send = Personalised("share")
    assert send.model_for(Personal(), "a", MODEL) is MODEL
    state = send.after(Personal(), FIRST, WEIGHTS, ScorerState(), MODEL)
    new = {"w": np.array([[20.0, 40.0]])}
    assert send.model_for(state, "a", new)["w"].tolist() == [[0.25 * 11 + 0.75 * 20, 0.25 * 20 + 0.75 * 40]]
    assert send.model_for(state, "b", new)["w"].tolist() == [[0.75 * 10 + 0.25 * 20, 0.75 * 24 + 0.25 * 40]]
    assert send.model_for(state, "c", new) is new  # has not replied yet


def test_an_update_counts_from_the_model_that_its_node_received() -> None:
    send = Personalised("share")
    state = send.after(Personal(), FIRST, WEIGHTS, ScorerState(), MODEL)
    second = whole_round({"b": {"w": np.array([[1.0, 1.0]])}}, {"w": np.array([[20.0, 40.0]])})
    after = send.after(state, second, np.array([1.0]), ScorerState(), MODEL)
    assert after.models["b"]["w"].tolist() == [[12.5 + 1, 28 + 1]]
    assert after.parts == {"a": 0.75, "b": 1.0}  # the absent one keeps its part and its model
    assert after.models["a"]["w"].tolist() == [[11.0, 20.0]]


def test_relative_parts_give_the_best_node_the_servers_model() -> None:
    send = Personalised("relative")
    state = send.after(Personal(), FIRST, WEIGHTS, ScorerState(), MODEL)
    assert state.parts == {"a": 1.0, "b": pytest.approx(1 / 3)}
    new = {"w": np.array([[0.1, 0.7]], np.float32)}
    sent = send.model_for(state, "a", new)["w"]
    assert sent.dtype == np.float32 and (sent == new["w"]).all()


@given(st.integers(0, 2**32 - 1))
def test_with_equal_weights_and_all_nodes_the_servers_model_is_the_mean_of_theirs(seed: int) -> None:
    draw = np.random.default_rng(seed)
    recipe = Recipe(uniform, send=Personalised("share"))
    state, model = RecipeState(), {"w": draw.normal(size=(2, 3))}
    for _ in range(3):
        round_ = whole_round({name: {"w": draw.normal(size=(2, 3))} for name in "abc"}, model)
        state, outcome = recipe.run(state, round_, round_.clients)
        model = outcome.model
        assert model["w"] == pytest.approx(np.mean([m["w"] for m in state.personal.models.values()], axis=0))


def test_reward_shares_are_the_papers() -> None:
    # The reputations after one round of D = (3, 4), (1, 0), (-1, 0): cosines 1, 0.6 and the floor, over 1.62.
    r = np.array([1.0, 0.6, 0.02])
    assert reward_shares(r, 1.0) == pytest.approx([1, 0.6451085457, 0.0224768477], abs=1e-9)
    assert reward_shares(5 * r, 1.0) == pytest.approx(reward_shares(r, 1.0))
    assert reward_shares(r, 1e7) == pytest.approx(np.ones(3))
    assert reward_shares(np.ones(3), 5e-324).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        (0.01, [0, -5, 0, 0, 0]),
        (0.2, [0, -5, 0, 0, 0]),
        (0.21, [3, -5, 0, 3, 0]),  # as large as the second largest
        (0.6, [3, -5, 0, 3, 0]),
        (0.61, [3, -5, 0, 3, 1]),
        (1.0, [3, -5, 0.5, 3, 1]),
        (0.0, [0, 0, 0, 0, 0]),
    ],
)
def test_the_largest_entries_of_a_tensor_stay(quota: float, expected: list[float]) -> None:
    assert largest({"w": np.array([3.0, -5, 0.5, 3, 1])}, quota)["w"].tolist() == expected


def test_small_shapes_have_a_largest_entry_too() -> None:
    move = {"scalar": np.array(2.0), "empty": np.zeros((0, 3)), "square": np.array([[1.0, 2], [3, 4]])}
    some = largest(move, 0.5)
    assert some["scalar"] == 2 and some["empty"].shape == (0, 3)
    assert some["square"].tolist() == [[0, 0], [3, 4]]


def test_a_node_gets_the_largest_entries_of_each_of_the_servers_moves() -> None:
    send, scorer = Sparsified(1.0), ScorerState(reputation={"a": 1.0, "b": 0.6})
    # q of b = tanh(0.375) / tanh(0.625) = 0.646: two of three entries.
    start = {"w": np.array([[1.0, 1, 1]])}
    first = whole_round({key: {"w": np.ones((1, 3))} for key in "ab"}, start)
    state = send.after(Personal(), first, WEIGHTS, scorer, {"w": np.array([[2.0, 4, 0.5]])})
    assert state.models["a"]["w"].tolist() == [[2, 4, 0.5]]
    assert state.models["b"]["w"].tolist() == [[2, 4, 1]]
    # a alone replies; b has a reputation and gets its part of this move as well; c is new and gets all.
    second = whole_round({"a": {"w": np.ones((1, 3))}}, {"w": np.array([[2.0, 4, 0.5]])})
    state = send.after(state, second, np.array([1.0]), scorer, {"w": np.array([[2.0, 5, 8.5]])})
    assert state.models["a"]["w"].tolist() == [[2, 5, 8.5]]
    assert state.models["b"]["w"].tolist() == [[2, 5, 9]]
    assert send.model_for(state, "c", MODEL) is MODEL


def test_rewards_leave_the_servers_model_to_cgsv_and_the_best_node_follows_it() -> None:
    draw = np.random.default_rng(0)
    rewarding, plain = built("cgsv", reward_beta=1.0), built("cgsv")
    state, other = RecipeState(), RecipeState()
    model: Arrays = {"w": draw.normal(size=(4, 5)).astype(np.float32)}
    common = draw.normal(size=(4, 5))
    for _ in range(4):
        noise = {"a": 0.01, "b": 1.0, "c": 9.0}
        updates = {
            name: {"w": (common + s * draw.normal(size=(4, 5))).astype(np.float32)}
            for name, s in noise.items()
        }
        round_ = whole_round(updates, model)
        state, outcome = rewarding.run(state, round_, round_.clients)
        other, same = plain.run(other, round_, round_.clients)
        model = outcome.model
        assert (model["w"] == same.model["w"]).all()
        best = max(state.scorer.reputation, key=state.scorer.reputation.__getitem__)
        assert best in "ab" and (state.personal.models[best]["w"] == model["w"]).mean() > 0.5
    far = {name: np.abs(m["w"] - model["w"]).sum() for name, m in state.personal.models.items()}
    assert far["a"] < far["c"]
    assert other.personal == Personal()


def test_the_servers_optimiser_is_in_the_move_that_is_rewarded() -> None:
    recipe = built("cgsv", reward_beta=1.0, server_learning_rate=0.5)
    round_ = whole_round({key: {"w": np.ones((1, 2))} for key in "ab"}, {"w": np.zeros((1, 2))})
    state, outcome = recipe.run(RecipeState(), round_, round_.clients)
    assert outcome.model["w"] == pytest.approx(np.full((1, 2), 0.5))
    assert state.personal.models["b"]["w"].tolist() == outcome.model["w"].tolist()


def built(weighting: str, **keys: object) -> Recipe:
    return presets.build(RunConfig.model_validate({"weighting": weighting, **keys}))


def test_a_run_sends_what_it_is_configured_to_send() -> None:
    assert built("shapfed").send is built("cgsv").send is built("uniform").send is same_model
    assert built("shapfed", personalise="relative").send == Personalised("relative")
    assert built("cgsv", reward_beta=1.5).send == Sparsified(1.5)


def test_state_that_another_broadcast_left_is_no_error() -> None:
    left = Sparsified(1.0).after(Personal(), FIRST, WEIGHTS, ScorerState(reputation={"a": 1.0}), MODEL)
    assert Personalised("share").model_for(left, "a", MODEL) is MODEL
