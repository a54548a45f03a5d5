"""The guards: each test by construction and against an obvious version, their order, and what they take."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import RunConfig
from common.models import Head
from common.params import Arrays
from strategies import presets
from strategies.guards import MOST, NO_TRAIL, ROUNDS, Guards
from strategies.recipe import RecipeState
from strategies.round import Reply, Round

SHAPE = (120, 100)  # 12,000 elements: enough for the noise test
EQUAL = np.full(5, 0.2)


def draw(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def honest(seed: int) -> np.ndarray:
    """An update that has a tenth of its direction in common with other honest ones."""
    return 0.3 * draw(999) + draw(seed)


def round_of(updates: dict[str, np.ndarray], dtype: str = "float64") -> Round:
    model = {"w": np.zeros(next(iter(updates.values())).shape, dtype), "head": np.zeros((3, 4), dtype)}
    replies = tuple(
        Reply(name, {"w": updates[name].astype(dtype), "head": np.zeros((3, 4), dtype)}, {}, 10)
        for name in sorted(updates)
    )
    return Round(1, model, Head("head", None, (3, 4)), replies)


def cohort(**others: np.ndarray) -> Round:
    """Four honest clients, ``a`` to ``d``, and these."""
    return round_of({name: honest(i) for i, name in enumerate("abcd")} | others)


def found_by(guards: Guards, round_: Round, trail: np.ndarray = NO_TRAIL) -> dict[str, list[str]]:
    weights = np.full(len(round_.replies), 1 / len(round_.replies))
    seen = guards.look(weights, round_, trail)
    return {name: [flag.test for flag in flags] for name, flags in seen.flags.items()}


def moves_of(*moves: np.ndarray) -> np.ndarray:
    """What the guards keep of earlier models that made these moves to the present one, which is zero."""
    models = -np.cumsum(moves[::-1], axis=0)[::-1]
    return np.stack([np.concatenate([model.ravel(), np.zeros(12)]) for model in models])


def test_honest_updates_of_one_direction_or_its_opposite_pass() -> None:
    assert found_by(Guards(), cohort(e=honest(5))) == {}
    assert found_by(Guards(), cohort(e=-honest(5))) == {}


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_noise_of_any_length_is_flagged_with_its_z(scale: float) -> None:
    round_ = round_of({name: honest(i) * scale for i, name in enumerate("abcd")} | {"e": draw(50) * scale})
    seen = Guards().look(EQUAL, round_)
    assert [*seen.flags] == ["e"]
    (flag,) = seen.flags["e"]
    assert (flag.test, flag.threshold) == ("noise", 5.0) and flag.value < 4
    assert f"z {flag.value:.1f}" in flag.text and "privacy" in flag.text


def z_by_hand(updates: list[np.ndarray], received: list[np.ndarray]) -> list[float]:
    """Residuals of least squares, then the largest inner product with another's in its deviations."""
    rest = []
    for update in updates:
        basis = np.stack([model.ravel() for model in received], axis=1)
        rest.append(update.ravel() - basis @ np.linalg.lstsq(basis, update.ravel(), rcond=None)[0])
    return [
        max(abs(sum(e * other)) / math.sqrt(sum(e**2 * other**2)) for j, other in enumerate(rest) if j != i)
        for i, e in enumerate(rest)
    ]


@given(st.integers(0, 999), st.integers(1, 4), st.sampled_from([0.04, 1.0]))
def test_z_is_that_of_the_definition(seed: int, rounds: int, freedom: float) -> None:
    updates = [draw(seed + i, (20, 6)) + 0.2 * draw(seed, (20, 6)) for i in range(1, 5)]
    received = [draw(seed + 100 + i, (20, 6)) for i in range(rounds)]
    model: Arrays = {"w": received[-1]}
    replies = tuple(Reply(f"c{i}", {"w": update}, {}, 1) for i, update in enumerate(updates))
    round_ = Round(1, model, Head("w", None, (20, 6)), replies)
    kept = np.stack([x.ravel() for x in received[:-1]]) if rounds > 1 else NO_TRAIL
    # Everybody is flagged at a threshold that nobody reaches, so that all values are seen.
    guards = Guards(noise=math.inf, fewest=1, freedom=freedom)
    seen = guards.look(np.full(4, 0.25), round_, kept)
    expected = np.array(z_by_hand(updates, received)) * math.sqrt(freedom)
    assert [f.value for (f,) in seen.flags.values()] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("shape_of", ["square", "sparse"])
def test_noise_of_uneven_size_is_noise_too(shape_of: str) -> None:
    """Its cosines with others vary more than those of even noise."""
    sizes = draw(70) ** 4 if shape_of == "square" else (np.abs(draw(70)) > 2.5).astype(float)
    alike = {name: (draw(999) + draw(i)) * sizes for i, name in enumerate("abcd")}
    assert found_by(Guards(), round_of(alike | {"e": draw(50) * sizes})) == {"e": ["noise"]}


def test_the_model_itself_and_its_whole_way_are_replays() -> None:
    first, second, now = draw(70), draw(71), draw(72)
    trail = np.stack([np.concatenate([model.ravel(), np.zeros(12)]) for model in (first, second)])
    for sent in (now, -now, now - first, second, first - second):
        round_ = cohort(e=sent)
        round_.model["w"][:] = now
        assert found_by(Guards(), round_, trail) == {"e": ["replay"]}


def test_the_largest_z_of_three_tensors_counts_and_no_fourth() -> None:
    sizes = {"t1": (130, 100), "t2": (120, 100), "t3": (110, 100), "t4": (100, 100)}
    model = {name: np.zeros(shape) for name, shape in reversed(sizes.items())}

    def flagged(common: str) -> set[str]:
        replies = tuple(
            Reply(f"c{i}", {n: draw(i * 10 + k, s) for k, (n, s) in enumerate(sizes.items())}, {}, 1)
            for i in range(4)
        )
        for reply in replies:
            reply.update[common] += 0.5 * draw(99, sizes[common])
        return set(
            Guards().look(np.full(4, 0.25), Round(1, model, Head("t1", None, (130, 100)), replies)).flags
        )

    assert all(not flagged(name) for name in ("t1", "t2", "t3"))
    assert len(flagged("t4")) == 4


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.049])
def test_an_empty_update_is_flagged_and_nobodys_peer(share: float) -> None:
    round_ = cohort(e=honest(5) * share)
    seen = Guards().look(EQUAL, round_)
    assert [*seen.flags] == ["e"]
    (flag,) = seen.flags["e"]
    typical = np.median([np.linalg.norm(reply.update["w"]) for reply in round_.replies[:4]])
    assert flag.test == "empty"
    assert flag.value == pytest.approx(np.linalg.norm(round_.replies[4].update["w"]) / typical, rel=0.02)


def test_a_short_update_passes() -> None:
    round_ = cohort(e=honest(5) * 0.06)
    assert found_by(Guards(), round_) == {}


@pytest.mark.parametrize("mix", [(1.0, 0.0, 0.0), (0.2, -3.0, 0.5), (0.0, 0.0, 1e-3)])
def test_any_mix_of_the_last_moves_is_a_replay(mix: tuple[float, float, float]) -> None:
    past = [draw(70 + i) for i in range(3)]
    copied = sum(factor * move for factor, move in zip(mix, past, strict=True))
    length = np.linalg.norm(honest(0)) / np.linalg.norm(copied)
    round_ = cohort(e=copied * length)
    assert found_by(Guards(), round_, moves_of(*past)) == {"e": ["replay"]}


def test_moves_that_point_the_same_way_are_taken_out_once() -> None:
    past = draw(70)
    round_ = cohort(e=past)
    alike = moves_of(past, 2 * past, np.zeros(SHAPE))
    assert found_by(Guards(), round_, alike) == {"e": ["replay"]}
    assert found_by(Guards(), cohort(), alike) == {}


def test_a_small_move_beside_large_ones_is_taken_out_too() -> None:
    past = [draw(70), draw(71) * 1e-9]
    assert found_by(Guards(), cohort(e=draw(71)), moves_of(*past)) == {"e": ["replay"]}


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_squares_neither_overflow_nor_vanish(scale: float) -> None:
    kinds = {
        "a": honest(0),
        "b": honest(1),
        "c": honest(2),
        "d": draw(50),
        "e": draw(70),
        "f": np.zeros(SHAPE),
    }
    round_ = round_of({name: x * scale for name, x in kinds.items()})
    with np.errstate(all="raise", under="ignore"):
        found = found_by(Guards(), round_, moves_of(draw(70) * scale))
    assert found == {"d": ["noise"], "e": ["replay"], "f": ["empty"]}


def test_the_typical_length_is_that_of_updates_that_are_there() -> None:
    """Three of five send nothing: the median of all would be 0."""
    small = {"a": honest(0) * 1e-5, "b": honest(1) * 1e-5} | {name: np.zeros(SHAPE) for name in "cde"}
    assert found_by(Guards(), round_of(small)) == {name: ["empty"] for name in "cde"}


@pytest.mark.parametrize("zero", [0, 1])
def test_a_huge_update_makes_no_honest_one_empty(zero: int) -> None:
    """Of two lengths in the middle the smaller one counts: their mean would be the attacker's to choose."""
    huge = {name: honest(9 + i) * 1e3 for i, name in enumerate("yz"[zero:])}
    few = {"a": honest(0), "b": np.zeros(SHAPE) if zero else honest(1)}
    assert found_by(Guards(), round_of(few | huge)) == ({"b": ["empty"]} if zero else {})


def test_a_replay_with_noise_is_noise() -> None:
    past = draw(70) * 20
    round_ = cohort(e=past + draw(80))
    assert found_by(Guards(), round_, moves_of(past)) == {"e": ["noise"]}


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


def test_a_replay_and_an_empty_update_get_no_weight() -> None:
    past = draw(70)
    seen = Guards(weigh=True).look(EQUAL, cohort(e=past), moves_of(past))
    assert seen.weights == pytest.approx([0.25, 0.25, 0.25, 0.25, 0])
    seen = Guards(weigh=True).look(EQUAL, cohort(e=np.zeros(SHAPE)))
    assert seen.weights == pytest.approx([0.25, 0.25, 0.25, 0.25, 0])


def test_lengths_and_cosines_are_those_of_three_tensors_together() -> None:
    sizes = {"t1": (120, 100), "t2": (110, 100), "t3": (100, 100)}
    model = {name: np.zeros(shape) for name, shape in sizes.items()}

    def update(i: int) -> Arrays:
        return {
            n: (3 * draw(99, s) + draw(10 * i + k, s)) * (k + i) for k, (n, s) in enumerate(sizes.items(), 1)
        }

    replies = tuple(Reply(f"c{i}", update(i), {}, 1) for i in range(5))
    round_ = Round(1, model, Head("t1", None, (120, 100)), replies)
    # Thresholds that everybody passes, so that all values are seen: 'empty' leaves nobody any peers.
    empty = Guards(empty=math.inf, noise=0).look(EQUAL, round_).flags
    copies = Guards(copy=-0.9, noise=0).look(EQUAL, round_).flags
    rows = [np.concatenate([x.ravel() for x in reply.update.values()]) for reply in replies]
    lengths = [float(np.linalg.norm(row)) for row in rows]
    for i, name in enumerate(round_.clients):
        cosines = [float(rows[i] @ rows[j]) / lengths[i] / lengths[j] for j in range(5) if j != i]
        assert empty[name][0].value == pytest.approx(lengths[i] / np.median(lengths))
        assert copies[name][0].value == pytest.approx(max(cosines))


@pytest.mark.parametrize(("share", "tests"), [(0.13, ["copy"]), (0.16, [])])
def test_a_copy_is_what_is_alike_to_a_cosine_of_099(share: float, tests: list[str]) -> None:
    noise = draw(60) * np.linalg.norm(honest(0)) / np.linalg.norm(draw(60))
    assert found_by(Guards(), cohort(e=honest(0) + share * noise)).get("e", []) == tests


def test_the_opposite_of_an_update_is_no_copy_of_it() -> None:
    assert found_by(Guards(), cohort(e=-honest(0))) == {}


@pytest.mark.parametrize(("share", "tests"), [(0.9e-3, ["replay"]), (1.1e-3, [])])
def test_a_replay_may_differ_by_a_thousandth_of_its_length(share: float, tests: list[str]) -> None:
    past = draw(70)
    rest = honest(5) * np.linalg.norm(past) / np.linalg.norm(honest(5))
    assert found_by(Guards(), cohort(e=past + share * rest), moves_of(past)).get("e", []) == tests


def test_a_replay_is_seen_in_each_tensor_on_its_own_moves() -> None:
    sizes = {"t1": (120, 100), "t2": (110, 100), "t3": (100, 100)}
    model = {name: np.zeros(shape) for name, shape in sizes.items()}
    past = {name: draw(70 + i, shape) for i, (name, shape) in enumerate(sizes.items())}
    others = [
        {n: 0.3 * draw(99, s) + draw(10 * i + k, s) for k, (n, s) in enumerate(sizes.items())}
        for i in range(3)
    ]
    replies = tuple(Reply(f"c{i}", update, {}, 1) for i, update in enumerate([*others, past]))
    round_ = Round(1, model, Head("t1", None, (120, 100)), replies)
    earlier = replace(round_, model={name: -x for name, x in past.items()})
    assert found_by(Guards(), round_, Guards().after(NO_TRAIL, earlier)) == {"c3": ["replay"]}


def test_what_is_alike_in_the_models_own_moves_alone_is_no_copy() -> None:
    """With momentum on the server's side most of a step is the same for everybody."""
    past = draw(70) * 30
    round_ = round_of({name: past + honest(i) for i, name in enumerate("abcd")})
    assert found_by(Guards(), round_, moves_of(past)) == {}
    assert set(found_by(Guards(), round_)) == set("abcd")


def test_several_that_send_the_same_noise_are_noise_too() -> None:
    seen = Guards(weigh=True).look(EQUAL, cohort(e=draw(50)))
    assert [*seen.flags] == ["e"]
    two = cohort(e=draw(50), f=draw(50))
    seen = Guards(weigh=True).look(np.full(6, 1 / 6), two)
    assert {n: [f.test for f in flags] for n, flags in seen.flags.items()} == {
        n: ["copy", "noise"] for n in "ef"
    }
    assert seen.weights == pytest.approx([0.25, 0.25, 0.25, 0.25, 0, 0])


def test_two_clients_are_not_tested_and_three_are() -> None:
    assert found_by(Guards(), round_of({"a": honest(0), "b": draw(50)})) == {}
    assert found_by(Guards(), round_of({"a": honest(0), "b": np.zeros(SHAPE)})) == {}
    assert found_by(Guards(), round_of({"a": honest(0), "b": honest(1), "c": np.zeros(SHAPE)})) == {
        "c": ["empty"]
    }
    assert found_by(Guards(), round_of({"a": honest(0), "b": honest(1), "e": draw(50)})) == {"e": ["noise"]}


def test_noise_takes_two_peers() -> None:
    """Of three one is empty: who of the other two is noise, nobody can say."""
    round_ = round_of({"a": honest(0), "b": np.zeros(SHAPE), "e": draw(50)})
    assert found_by(Guards(), round_) == {"b": ["empty"]}


def test_a_small_model_has_no_noise_test_and_the_others() -> None:
    small = {name: draw(i, (90, 100)) for i, name in enumerate("abcd")}
    assert found_by(Guards(), round_of(small)) == {}
    assert found_by(Guards(), round_of(small | {"e": small["a"]})) == {"a": ["copy"], "e": ["copy"]}


def test_a_model_that_is_too_small_for_the_noise_test_is_told_in_a_sentence() -> None:
    sizes = {"w": np.zeros((90, 100)), "b": np.zeros(90)}
    assert Guards().unseen(sizes | {"w": np.zeros(SHAPE)}) == Guards(fewest=9000).unseen(sizes) == ""
    assert Guards().unseen(sizes) == (
        "the guards do not look for noise: in the model's largest tensor 9,000 numbers are free, and it takes 10,000"
    )
    assert Guards(freedom=0.5).unseen({"w": np.zeros(SHAPE)})


def of_model(w: np.ndarray) -> Round:
    return Round(1, {"w": w}, Head("w", None, w.shape), ())


def test_a_very_large_tensor_is_compared_on_evenly_spaced_elements() -> None:
    large = np.arange(2.0 * MOST + 2).reshape(MOST + 1, 2)
    trail = Guards().after(NO_TRAIL, of_model(large))
    assert trail.shape == (1, math.ceil((2 * MOST + 2) / 3))
    assert trail[0].tolist()[:4] == [0, 3, 6, 9]


def test_the_first_model_and_the_last_ones_are_kept_in_their_order() -> None:
    trail = NO_TRAIL
    for i in range(ROUNDS + 5):
        trail = Guards().after(trail, of_model(np.full((2, 2), float(i))))
        assert len(trail) == min(i + 1, ROUNDS + 1)
    assert trail[:, 0].tolist() == [0, *range(5, ROUNDS + 5)]


def test_flags_only_tell_unless_they_weigh() -> None:
    weights = np.array([0.1, 0.2, 0.3, 0.2, 0.2])
    round_ = cohort(e=draw(50))
    assert Guards().look(weights, round_).weights is weights
    guarded = Guards(weigh=True).look(weights, round_).weights
    assert guarded == pytest.approx([0.125, 0.25, 0.375, 0.25, 0])


def test_without_flags_not_a_bit_of_the_weights_changes() -> None:
    weights = np.array([0.1, 0.2, 0.3, 0.2, 0.2]) + 1e-17
    assert Guards(weigh=True).look(weights, cohort(e=honest(5))).weights is weights


@pytest.mark.parametrize("updates", ["noise", "zeros"])
def test_where_everybody_is_flagged_the_weights_stay_and_a_note_says_so(updates: str) -> None:
    round_ = round_of({n: draw(i) if updates == "noise" else np.zeros(SHAPE) for i, n in enumerate("abc")})
    weights = np.array([0.5, 0.3, 0.2])
    seen = Guards(weigh=True).look(weights, round_)
    assert len(seen.flags) == 3 and seen.weights is weights
    assert seen.notes == ("the guards flag everybody who has a weight, and take none",)


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


def test_a_recipe_tells_where_the_guards_take_none() -> None:
    recipe = presets.build(RunConfig.read({"weighting": "uniform", "guards": "weight"}, "the test"))
    round_ = round_of({name: draw(i) for i, name in enumerate("abc")})
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
