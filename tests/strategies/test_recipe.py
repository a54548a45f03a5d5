"""Recipes: the weights of each preset, its modes, its fallbacks, and what the next model is."""

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from common.config import RunConfig
from common.models import Head
from strategies import presets
from strategies.aggregate import merged_buffers, weighted_sum
from strategies.recipe import RecipeState
from strategies.round import Reply, Round, Vector
from strategies.scorers import Ema, ScorerState
from strategies.server_rule import ServerRule
from strategies.signals import Reading
from tests.strategies.rounds import entropy_by_svd, head_round, whole_round

WEIGHTINGS = sorted(presets.PRESETS.keys() - {"fedlaw"})  # which looks at data: test_fedlaw.py
RICH, POOR = np.diag([1.0, 1, 1]), np.diag([2.0, 1, 0])


def config(**keys: object) -> RunConfig:
    return RunConfig(**keys)  # type: ignore[arg-type]


def test_spectralfed_weighs_by_smoothed_entropy() -> None:
    recipe = presets.build(config(weighting="spectralfed", score_ema=0.9))
    first, second = head_round({"a": RICH, "b": POOR}), head_round({"a": POOR, "b": POOR})
    state, outcome = recipe.run(RecipeState(), first, first.clients)
    rich, poor = entropy_by_svd(RICH), entropy_by_svd(POOR)
    assert outcome.weights == pytest.approx(np.array([rich, poor]) / (rich + poor))
    _, outcome = recipe.run(state, second, first.clients)
    a = 0.9 * rich + 0.1 * poor
    assert outcome.weights == pytest.approx(np.array([a, poor]) / (a + poor))
    assert outcome.signals["entropy"] == pytest.approx([poor, poor])


def test_spectralfuse_by_hand_in_its_first_round() -> None:
    recipe = presets.build(config(weighting="spectralfuse"))
    round_ = head_round({"a": RICH, "b": POOR, "c": -POOR})
    _, outcome = recipe.run(RecipeState(), round_, round_.clients)
    assert outcome.scores is not None and outcome.scores.std is not None
    s, g = (v / v.sum() for v in (outcome.signals["entropy"], outcome.signals["alignment"]))
    # x = 1/3, P- = 1.0001, R = 1.001 for both signals, since equal scores rank nothing.
    prior, noise = 1 / 1.0001, 1 / 1.001
    expected = (prior / 3 + noise * s + noise * g) / (prior + 2 * noise)
    assert outcome.weights == pytest.approx(expected)
    assert outcome.scores.std == pytest.approx(np.full(3, (prior + 2 * noise) ** -0.5))


def test_two_classes_leave_spectralfuse_the_alignment_alone() -> None:
    recipe = presets.build(config(weighting="spectralfuse"))
    round_ = head_round({"a": [[1.0, 0], [-1, 0]], "b": [[1.0, 0], [-1, 0]], "c": [[-1.0, 0], [1, 0]]})
    _, outcome = recipe.run(RecipeState(), round_, round_.clients)
    assert outcome.scores is not None and list(outcome.scores.noise) == ["alignment"]
    assert outcome.weights[2] < outcome.weights[0] == pytest.approx(outcome.weights[1])
    assert any("entropy is off" in note for note in outcome.notes)


def test_spectralfed_without_entropy_falls_back_to_equal_weights_and_says_so() -> None:
    recipe = presets.build(config(weighting="spectralfed"))
    round_ = head_round({"a": np.ones((2, 3)), "b": np.zeros((2, 3))})
    _, outcome = recipe.run(RecipeState(), round_, round_.clients)
    assert outcome.weights == pytest.approx([0.5, 0.5])
    assert outcome.shares is None
    assert len(outcome.notes) == 2


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_one_client_weighs_one(weighting: str) -> None:
    round_ = head_round({"a": POOR})
    recipe = presets.build(config(weighting=weighting))
    state, outcome = recipe.run(RecipeState(), round_, ("a", "b"))
    assert outcome.weights == pytest.approx([1.0])
    assert state.scorer.kalman.trust == {}  # nothing to rank


def test_examples_weighs_by_counts_and_uniform_does_not() -> None:
    round_ = head_round({"a": RICH, "b": POOR}, a=30, b=10)
    for weighting, expected in {"examples": [0.75, 0.25], "uniform": [0.5, 0.5]}.items():
        _, outcome = presets.build(config(weighting=weighting)).run(RecipeState(), round_, round_.clients)
        assert outcome.weights == pytest.approx(expected)
        assert outcome.scores is None


def test_observing_records_scores_but_keeps_the_base_weights() -> None:
    round_ = head_round({"a": RICH, "b": POOR}, a=30, b=10)
    run = config(weighting="spectralfed", contribution="observe", base_weighting="examples")
    _, outcome = presets.build(run).run(RecipeState(), round_, round_.clients)
    assert outcome.weights == pytest.approx([0.75, 0.25])
    assert outcome.shares is not None and outcome.shares[0] > outcome.shares[1] != 0.25


def test_off_scores_nothing() -> None:
    recipe = presets.build(config(weighting="spectralfuse", contribution="off"))
    round_ = head_round({"a": RICH, "b": POOR})
    _, outcome = recipe.run(RecipeState(), round_, round_.clients)
    assert (dict(outcome.signals), outcome.scores) == ({}, None)
    assert outcome.weights == pytest.approx([0.5, 0.5])


def test_the_next_model_moves_by_the_weighted_update_times_the_server_rate() -> None:
    round_ = head_round({"a": RICH, "b": POOR}, a=3, b=1)
    run = config(weighting="examples", server_learning_rate=0.5)
    _, outcome = presets.build(run).run(RecipeState(), round_, round_.clients)
    assert outcome.model["head.weight"] == pytest.approx(0.5 * (0.75 * RICH + 0.25 * POOR))


def test_float_buffers_are_averaged_and_counters_take_the_maximum() -> None:
    def reply(name: str, mean: float, count: int) -> Reply:
        buffers = {"mean": np.array([mean], np.float32), "count": np.array(count)}
        return Reply(name, {"head.weight": np.zeros((3, 2))}, buffers, 1)

    round_ = Round(
        1,
        {"head.weight": np.zeros((3, 2))},
        Head("head.weight", None, (3, 2)),
        (reply("a", 1.0, 7), reply("b", 3.0, 5)),
    )
    merged = merged_buffers(round_, np.array([0.25, 0.75]))
    assert merged["mean"] == pytest.approx([2.5]) and merged["mean"].dtype == np.float32
    assert merged["count"] == 7 and merged["count"].dtype == np.int64


@pytest.mark.parametrize("kind", ["median", "trimmed-mean", "krum", "multi-krum", "geometric-median"])
def test_no_single_client_moves_buffers_where_the_aggregate_is_robust(kind: str) -> None:
    """Of an even number, counters take the upper one of the two in the middle."""

    def reply(name: str, mean: float, count: int) -> Reply:
        buffers = {"mean": np.array([mean], np.float32), "count": np.array(count)}
        return Reply(name, {"head.weight": np.ones((3, 2))}, buffers, 1)

    said = [("a", 1.0, 7), ("b", 2.0, 9), ("c", 4.0, 8), ("d", 1e30, 2**63 - 1)]
    head = Head("head.weight", None, (3, 2))
    round_ = Round(1, {"head.weight": np.zeros((3, 2))}, head, tuple(reply(*one) for one in said))
    recipe = presets.build(config(weighting="uniform", aggregation=kind))
    _, outcome = recipe.run(RecipeState(), round_, round_.clients)
    assert outcome.buffers["mean"] == pytest.approx([3.0]) and outcome.buffers["mean"].dtype == np.float32
    assert outcome.buffers["count"] == 9 and outcome.buffers["count"].dtype == np.int64


def test_replies_must_stand_in_the_order_of_distinct_names() -> None:
    good = head_round({"a": RICH, "b": POOR})
    for replies in (good.replies[::-1], (good.replies[0], good.replies[0])):
        with pytest.raises(ValueError, match="order of distinct client names"):
            Round(1, good.model, good.head, replies)


def test_a_client_without_a_value_keeps_its_mean_and_a_new_one_scores_zero() -> None:
    alone, three = head_round({"a": RICH}), head_round({"a": RICH, "b": RICH, "c": RICH})
    state, _ = Ema(0.5).score(ScorerState(), {"s": np.array([1.0])}, alone, alone.clients)
    signals = {"s": np.array([np.nan, 3.0, np.nan])}
    _, scores = Ema(0.5).score(state, signals, three, three.clients)
    assert scores.values == pytest.approx([1.0, 3.0, 0.0])


REMEMBERING = [name for name in WEIGHTINGS if presets.build(config(weighting=name)).scorer is not None]


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.sampled_from(WEIGHTINGS), arrays(np.float32, (3, 3, 4), elements=FLOATS))
def test_weights_are_on_the_simplex_whatever_the_updates(weighting: str, heads: np.ndarray) -> None:
    round_ = head_round(dict(zip("abc", heads, strict=True)))
    recipe = presets.build(config(weighting=weighting))
    state = RecipeState()
    for _ in range(2):
        state, outcome = recipe.run(state, round_, round_.clients)
        assert (outcome.weights >= 0).all()
        assert outcome.weights.sum() == pytest.approx(1.0)
        assert outcome.model["head.weight"] == pytest.approx(
            weighted_sum(recipe.rescale(round_), outcome.weights)["head.weight"]
        )


@given(st.sampled_from(WEIGHTINGS), st.permutations(range(5)), st.integers(0, 2**32 - 1))
def test_weights_go_with_the_client_whatever_its_name(weighting: str, order: list[int], seed: int) -> None:
    draw = np.random.default_rng(seed)
    recipe = presets.build(config(weighting=weighting))
    state, turned = RecipeState(), RecipeState()
    for _ in range(3):
        heads = draw.normal(size=(5, 3, 4)) + draw.normal(size=(3, 4))
        labels = draw.integers(1, 50, size=(5, 3))
        rounds = [
            whole_round(
                {name: {"w": heads[i]} for name, i in zip("abcde", of, strict=True)},
                **{name: tuple(labels[i].tolist()) for name, i in zip("abcde", of, strict=True)},
            )
            for of in (range(5), order)
        ]
        state, one = recipe.run(state, rounds[0], rounds[0].clients)
        turned, other = recipe.run(turned, rounds[1], rounds[1].clients)
        assert other.weights == pytest.approx(one.weights[order])


@given(
    st.sampled_from(REMEMBERING),
    st.lists(st.sets(st.sampled_from("abcdef"), min_size=1), min_size=1, max_size=12),
    st.integers(0, 2**32 - 1),
)
def test_equal_clients_weigh_the_same_whoever_took_part_before(
    weighting: str, cohorts: list[set[str]], seed: int
) -> None:
    same = np.random.default_rng(seed).normal(size=(3, 4))
    recipe = presets.build(config(weighting=weighting))
    state = RecipeState()
    for cohort in cohorts:
        state, outcome = recipe.run(state, head_round(dict.fromkeys(cohort, same)), tuple("abcdef"))
        assert outcome.weights == pytest.approx(np.full(len(cohort), 1 / len(cohort)))


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_a_round_of_zeros_leaves_the_model_and_weighs_all_the_same(weighting: str) -> None:
    zeros = head_round(dict.fromkeys("abc", np.zeros((3, 4))))
    recipe = presets.build(config(weighting=weighting))
    state, outcome = recipe.run(RecipeState(), zeros, zeros.clients)
    _, again = recipe.run(state, zeros, zeros.clients)
    assert outcome.weights == pytest.approx(np.full(3, 1 / 3)) == again.weights
    assert not outcome.model["head.weight"].any()


IDLE = {"a": np.diag([1.0, 1, 1]), "b": np.diag([1.0, 2, 1]), "c": np.zeros((3, 3))}


@pytest.mark.parametrize(
    ("weighting", "below"),
    [("spectralfed", 1e-9), ("spectralfuse", 0.25), ("shapfed", 0.25), ("cgsv", 0.05)],
)
def test_who_sends_zeros_weighs_less(weighting: str, below: float) -> None:
    round_ = head_round(IDLE)
    _, outcome = presets.build(config(weighting=weighting)).run(RecipeState(), round_, round_.clients)
    assert 0 <= outcome.weights[2] < below


@pytest.mark.parametrize("weighting", REMEMBERING)
def test_one_row_that_nobody_moved_is_no_harm(weighting: str) -> None:
    heads = {name: m * np.array([[1], [1], [0]]) for name, m in IDLE.items()}
    round_ = head_round(heads)
    _, outcome = presets.build(config(weighting=weighting)).run(RecipeState(), round_, round_.clients)
    assert np.isfinite(outcome.weights).all() and outcome.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("weighting", REMEMBERING)
def test_two_clients_rank_nothing(weighting: str) -> None:
    round_ = head_round({"a": RICH, "b": POOR})
    state, outcome = presets.build(config(weighting=weighting)).run(RecipeState(), round_, round_.clients)
    assert set(state.scorer.kalman.trust.values()) <= {0.0}
    assert (outcome.weights > 0).all()


def test_an_opposed_client_never_gets_a_negative_weight() -> None:
    round_ = head_round({"a": RICH, "b": RICH, "c": -5 * RICH})
    for weighting in WEIGHTINGS:
        _, outcome = presets.build(config(weighting=weighting)).run(RecipeState(), round_, round_.clients)
        assert (outcome.weights >= 0).all(), weighting


def test_equal_norms_are_cgsvs_alone_and_only_while_it_weighs() -> None:
    round_ = head_round({"a": RICH, "b": RICH, "c": 100 * RICH})
    for mode, size in {"weight": 1, "observe": 34, "off": 34}.items():
        recipe = presets.build(config(weighting="cgsv", contribution=mode))
        _, outcome = recipe.run(RecipeState(), round_, round_.clients)
        assert outcome.model["head.weight"] == pytest.approx(size * RICH)


def test_updates_are_clipped_after_they_were_scored_and_before_they_are_summed() -> None:
    round_ = head_round({"a": RICH, "b": RICH, "c": 100 * RICH})
    recipe = presets.build(config(weighting="uniform", update_clip=1.0))
    _, outcome = recipe.run(RecipeState(), round_, round_.clients)
    assert outcome.model["head.weight"] == pytest.approx(RICH)


def test_shrinkage_and_the_server_optimiser_come_last() -> None:
    round_ = whole_round({"a": {"w": RICH}, "b": {"w": 2 * RICH}}, {"w": np.ones((3, 3))})
    keys = {"weighting": "uniform", "server_optimizer": "momentum", "server_momentum": 0.5}
    shrinking = presets.build(config(layer_shrinkage=0.03, **keys))
    assert shrinking.run(RecipeState(), round_, round_.clients)[1].model["w"].sum() < 9 + 4.5
    plain = presets.build(config(**keys))
    state, _ = plain.run(RecipeState(), round_, round_.clients)
    _, outcome = plain.run(state, round_, round_.clients)
    assert outcome.model["w"] == pytest.approx(1 + 1.5 * RICH * 1.5)


def test_labels_are_wanted_only_while_they_are_used() -> None:
    for weighting in WEIGHTINGS:
        for mode in ("off", "observe", "weight"):
            run = config(weighting=weighting, contribution=mode)
            wanted = weighting == "feddisco" and mode != "off"
            assert run.wants_labels == presets.build(run).needs_labels == wanted


def test_the_signals_follow_their_keys() -> None:
    round_ = whole_round(
        {
            name: {"head": m, "body": np.diag([3.0, 2, 1])}
            for name, m in (("a", np.eye(3)), ("b", np.diag([3.0, 2, 1])))
        }
    )

    def signals(**keys: object) -> dict[str, list[float]]:
        recipe = presets.build(config(weighting="spectralfuse", **keys))
        _, outcome = recipe.run(RecipeState(), round_, round_.clients)
        return {name: values.tolist() for name, values in outcome.signals.items()}

    assert signals()["entropy"] == pytest.approx([math.log(3), 0.8304717124])
    assert signals(entropy_norm="frobenius")["entropy"] == pytest.approx([0.9514261509, 0.6843352872])
    assert signals(entropy_layer="body")["entropy"] == pytest.approx([0.8304717124] * 2)
    mapped, raw = signals()["alignment"], signals(alignment="raw")["alignment"]
    assert mapped == pytest.approx([(1 + value) / 2 for value in raw])
    assert signals(alignment="leave-one-out")["alignment"] == pytest.approx([1.0, 1.0])


def test_clients_that_oppose_each_other_weigh_equally_with_the_reasons() -> None:
    round_ = head_round({"a": np.eye(3, 4), "b": -np.eye(3, 4), "c": np.zeros((3, 4))})
    recipe = presets.build(config(weighting="shapfed", alignment="leave-one-out"))
    _, outcome = recipe.run(RecipeState(), round_, round_.clients)
    assert outcome.weights == pytest.approx([1 / 3] * 3)
    assert outcome.notes[-1] == "the scores have no positive sum: they do not weigh"


def test_a_negative_alignment_is_noted_and_weighs_nothing() -> None:
    round_ = head_round({"a": np.eye(3, 4), "b": -np.eye(3, 4), "c": np.eye(3, 4)})
    recipe = presets.build(config(weighting="shapfed", alignment="raw"))
    _, outcome = recipe.run(RecipeState(), round_, round_.clients)
    assert outcome.weights == pytest.approx([0.5, 0.0, 0.5])
    assert outcome.notes == ("negative alignments count as 0: b (-1.00)",)


@pytest.mark.parametrize(
    ("optimizer", "kept"), [("sgd", 0), ("momentum", 2), ("adam", 4), ("yogi", 4), ("adagrad", 4)]
)
def test_a_round_takes_less_than_two_models_beside_the_replies_and_what_it_keeps(
    optimizer: str, kept: int
) -> None:
    rng = np.random.default_rng(0)
    tensors = [f"body.{i}" for i in range(20)]

    def arrays() -> dict[str, np.ndarray]:
        return {name: rng.normal(size=50_000).astype(np.float32) for name in tensors}

    head = {"head.weight": np.eye(3, 5, dtype=np.float32)}
    replies = tuple(Reply(name, arrays() | head, {}, 10) for name in "abcd")
    model = arrays() | head
    round_ = Round(1, model, Head("head.weight", None, (3, 5)), replies)
    recipe = presets.build(config(weighting="spectralfuse", server_optimizer=optimizer))
    tracemalloc.start()
    state, _ = recipe.run(RecipeState(), round_, round_.clients)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = sum(x.nbytes for x in model.values())
    assert sum(x.nbytes for x in state.step.values()) == pytest.approx(kept * size, rel=1e-3)
    assert peak < (2 + kept) * size


def test_signals_see_the_last_weights_and_the_typical_one_of_who_is_new() -> None:
    seen: list[list[float]] = []

    def spy(round_: Round, previous: Vector) -> Reading:
        seen.append(previous.tolist())
        return Reading(np.ones(len(previous)))

    recipe = replace(presets.build(config(weighting="spectralfed")), signals={"entropy": spy})
    round_ = head_round({"a": RICH, "b": POOR, "c": RICH})
    recipe.run(RecipeState(weights={"a": 0.2, "b": 0.4}), round_, round_.clients)
    recipe.run(RecipeState(), round_, round_.clients)
    assert seen == [pytest.approx([0.2, 0.4, 0.3]), [1.0, 1.0, 1.0]]


def test_the_servers_half_of_an_algorithm_sees_updates_as_they_were_sent() -> None:
    """Rescaled ones are for the sum alone: a control or a direction is made of what nodes did."""
    lengths: list[float] = []

    class Spy(ServerRule):
        def step(self, state, round_, update, weights, population):  # type: ignore[no-untyped-def]
            lengths.extend(float(np.linalg.norm(r.update["head.weight"])) for r in round_.replies)
            return state, update

    round_ = head_round({"a": RICH, "b": 50 * RICH})
    recipe = replace(presets.build(config(weighting="uniform", update_clip=1.0)), rule=Spy())
    recipe.run(RecipeState(), round_, round_.clients)
    assert lengths == pytest.approx([3**0.5, 50 * 3**0.5])
