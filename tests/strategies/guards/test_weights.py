"""What flags take: nothing unless they weigh, and then the reply, but for copies; alone and in a recipe."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import RunConfig
from strategies import presets
from strategies.guards import Guards
from strategies.recipe import RecipeState
from tests.strategies.guards.cohorts import EQUAL, SHAPE, cohort, draw, found_by, honest, moves_of, round_of


def test_flags_only_tell_unless_they_weigh() -> None:
    weights = np.array([0.1, 0.2, 0.3, 0.2, 0.2])
    round_ = cohort(e=draw(50))
    assert Guards().look(weights, round_).weights is weights
    guarded = Guards(weigh=True).look(weights, round_).weights
    assert guarded == pytest.approx([0.125, 0.25, 0.375, 0.25, 0])


def test_without_flags_not_a_bit_of_the_weights_changes() -> None:
    weights = np.array([0.1, 0.2, 0.3, 0.2, 0.2]) + 1e-17
    assert Guards(weigh=True).look(weights, cohort(e=honest(5))).weights is weights


def test_a_replay_and_an_empty_update_get_no_weight() -> None:
    past = draw(70)
    seen = Guards(weigh=True).look(EQUAL, cohort(e=past), moves_of(past))
    assert seen.weights == pytest.approx([0.25, 0.25, 0.25, 0.25, 0])
    seen = Guards(weigh=True).look(EQUAL, cohort(e=np.zeros(SHAPE)))
    assert seen.weights == pytest.approx([0.25, 0.25, 0.25, 0.25, 0])


def test_copies_share_the_weight_of_one_and_name_each_other() -> None:
    seen = Guards(weigh=True).look(EQUAL, cohort(e=honest(0) * 1.5))
    assert {name: [f.test for f in flags] for name, flags in seen.flags.items()} == {
        "a": ["copy"],
        "e": ["copy"],
    }
    assert "that of e brings" in seen.flags["a"][0].text and "that of a brings" in seen.flags["e"][0].text
    assert seen.weights == pytest.approx([1 / 8, 1 / 4, 1 / 4, 1 / 4, 1 / 8]) and not seen.dropped


def test_three_that_are_alike_share_the_weight_of_one() -> None:
    seen = Guards(weigh=True).look(np.full(6, 1 / 6), cohort(e=honest(0) * 1.5, f=honest(0) * 2))
    assert seen.weights == pytest.approx([1 / 12, 1 / 4, 1 / 4, 1 / 4, 1 / 12, 1 / 12])


def test_where_everybody_is_flagged_the_weights_stay_and_a_note_says_so() -> None:
    round_ = round_of({name: np.zeros(SHAPE) for name in "abc"})
    weights = np.array([0.5, 0.3, 0.2])
    seen = Guards(weigh=True).look(weights, round_)
    assert len(seen.flags) == 3 and seen.weights is weights
    assert seen.notes == ("the guards flag everybody who has a weight, and take none",)


def test_where_the_typical_update_is_like_noise_nobody_is_flagged_for_it() -> None:
    weights = np.array([0.4, 0.3, 0.2, 0.1])
    three = {name: draw(i) for i, name in enumerate("abc")}
    seen = Guards(weigh=True).look(weights, round_of(three | {"d": np.zeros(SHAPE)}))
    assert [*seen.flags] == ["d"] and seen.weights == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0])
    assert len(seen.notes) == 1 and seen.notes[0].startswith("the guards cannot tell noise: the typical")
    # Of five, three are honest: the other two are told.
    two = {name: honest(ord(name)) for name in "xyz"} | {"a": three["a"], "b": three["b"]}
    assert found_by(Guards(), round_of(two)) == {"a": ["noise"], "b": ["noise"]}


@given(st.lists(st.sampled_from(["honest", "noise", "zero", "copy", "huge", "tiny"]), min_size=1, max_size=7))
def test_weights_stay_on_the_simplex_whatever_is_sent(kinds: list[str]) -> None:
    makes = {
        "honest": honest,
        "noise": lambda i: draw(50 + i),
        "zero": lambda i: np.zeros(SHAPE),
        "copy": lambda i: honest(0),
        "huge": lambda i: honest(i) * 1e37,
        "tiny": lambda i: honest(i) * 1e-42,
    }
    round_ = round_of({f"c{i}": makes[kind](i) for i, kind in enumerate(kinds)}, "float32")
    weights = np.random.default_rng(len(kinds)).dirichlet(np.ones(len(kinds)))
    with np.errstate(all="raise", under="ignore"):
        seen = Guards(weigh=True).look(weights, round_)
    assert seen.weights.sum() == pytest.approx(1) and (seen.weights >= 0).all()
    for flag in (flag for flags in seen.flags.values() for flag in flags):
        assert math.isfinite(flag.value)


def run(guards: str) -> tuple[RecipeState, list[np.ndarray]]:
    """Three rounds of four honest clients and one that sends noise, and the weights of each."""
    recipe = presets.build(RunConfig.read({"weighting": "spectralfed", "guards": guards}, "the test"))
    state, weights = RecipeState(), []
    for number in range(3):
        round_ = cohort(e=draw(50 + number))
        for i, reply in enumerate(round_.replies):
            reply.update["head"][:] = draw(10 * number + i, (3, 4))
        state, outcome = recipe.run(state, round_, round_.clients)
        weights.append(outcome.weights)
        assert set(outcome.flags) == (set() if guards == "off" else {"e"})
    return state, weights


def test_a_recipe_is_guarded_outside_its_scores() -> None:
    off, free = run("off")
    observed, watched = run("observe")
    guarded, taken = run("weight")
    assert len(off.trail) == 0 and len(observed.trail) == len(guarded.trail) == 3
    for a, b, c in zip(free, watched, taken, strict=True):
        assert (a == b).all() and a[4] > 0
        assert c[4] == 0 and c[:4] == pytest.approx(a[:4] / a[:4].sum())
    assert guarded.scorer == off.scorer  # the entropy does not look at weights


def test_buffers_are_those_of_who_is_left() -> None:
    recipe = presets.build(RunConfig.read({"guards": "weight"}, "the test"))
    round_ = cohort(e=draw(50))
    counts = [3, 5, 4, 3, 900]
    replies = tuple(
        replace(reply, buffers={"seen": np.array(n), "mean": np.array([float(n)])})
        for reply, n in zip(round_.replies, counts, strict=True)
    )
    _, outcome = recipe.run(RecipeState(), replace(round_, replies=replies), round_.clients)
    assert outcome.dropped == ("e",) and outcome.buffers["seen"] == 5
    assert outcome.buffers["mean"] == pytest.approx(
        [sum(w * n for w, n in zip(outcome.weights, counts, strict=True))]
    )


@pytest.mark.parametrize("part", ["share", "relative"])
def test_who_is_left_out_keeps_what_it_had_of_the_servers_model(part: str) -> None:
    """As one whose reply did not come: it is not cut off with a model that was flagged."""
    keys = {"weighting": "shapfed", "personalise": part, "guards": "weight"}
    recipe = presets.build(RunConfig.read(keys, "the test"))
    before, _ = recipe.run(RecipeState(), cohort(e=honest(5)), tuple("abcde"))
    after, outcome = recipe.run(before, cohort(e=draw(50)), tuple("abcde"))
    assert outcome.dropped == ("e",)
    assert after.personal.parts["e"] == before.personal.parts["e"] > 0
    assert after.weights["e"] == before.weights["e"]
    for name, x in before.personal.models["e"].items():
        assert (after.personal.models["e"][name] == x).all()


def test_a_recipe_tells_where_the_guards_take_none() -> None:
    recipe = presets.build(RunConfig.read({"weighting": "uniform", "guards": "weight"}, "the test"))
    round_ = round_of({name: np.zeros(SHAPE) for name in "abc"})
    _, outcome = recipe.run(RecipeState(), round_, round_.clients)
    assert outcome.notes == ("the guards flag everybody who has a weight, and take none",)
    assert len(outcome.flags) == 3 and outcome.weights == pytest.approx(np.full(3, 1 / 3))


def test_z_of_a_run_is_the_guards_threshold() -> None:
    built = presets.build(RunConfig.read({"guard-z": 7.5, "guards": "weight"}, "the test"))
    assert built.guards == Guards(weigh=True, noise=7.5)
    assert presets.build(RunConfig()).guards == Guards()
    for keys in ({"weighting": "examples"}, {"contribution": "off"}):
        assert presets.build(RunConfig.read(keys, "the test")).guards is None
        told = presets.build(RunConfig.read({**keys, "guards": "weight"}, "the test"))
        assert told.guards == Guards(weigh=True)
    ssf = presets.build(RunConfig.read({"algorithm": "ssf", "ssf-rank": 0.1}, "the test"))
    assert ssf.guards == Guards(freedom=0.1)
