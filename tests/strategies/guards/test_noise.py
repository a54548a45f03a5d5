"""Noise: what has nothing in common with anybody, whatever its size and shape, and where nobody can tell."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.models import Head
from common.params import Arrays
from strategies.guards import MOST, NO_TRAIL, Guards, _picked
from strategies.round import Reply, Round
from tests.strategies.guards.cohorts import EQUAL, SHAPE, cohort, draw, found_by, honest, moves_of, round_of


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
    """Residuals of least squares, signed roots of them, and the largest inner product in its deviations."""
    rest = []
    for update in updates:
        basis = np.stack([model.ravel() for model in received], axis=1)
        left = update.ravel() - basis @ np.linalg.lstsq(basis, update.ravel(), rcond=None)[0]
        rest.append(np.array([math.copysign(abs(x) ** 0.5, x) for x in left]))
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
    expected = np.array(z_by_hand(updates, received)) * math.sqrt(freedom)
    # At a threshold that the typical update just reaches, those below are flagged, with their values.
    threshold = float(np.median(expected)) * (1 - 1e-6)
    seen = Guards(noise=threshold, fewest=1, freedom=freedom).look(np.full(4, 0.25), round_, kept)
    below = {f"c{i}": z for i, z in enumerate(expected) if z < threshold}
    assert {name: f.value for name, (f,) in seen.flags.items()} == pytest.approx(below, rel=1e-6)


@pytest.mark.parametrize("shape_of", ["square", "sparse"])
def test_noise_of_uneven_size_is_noise_too(shape_of: str) -> None:
    """Its cosines with others vary more than those of even noise."""
    sizes = draw(70) ** 4 if shape_of == "square" else (np.abs(draw(70)) > 2.5).astype(float)
    alike = {name: (draw(999) + draw(i)) * sizes for i, name in enumerate("abcd")}
    assert found_by(Guards(), round_of(alike | {"e": draw(50) * sizes})) == {"e": ["noise"]}


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
        for reply in replies[1:]:
            reply.update["t2"] += 0.5 * draw(98, sizes["t2"])
        return set(
            Guards().look(np.full(4, 0.25), Round(1, model, Head("t1", None, (130, 100)), replies)).flags
        )

    assert all(not flagged(name) for name in ("t1", "t2", "t3"))
    assert flagged("t4") == {"c0"}


def test_a_few_large_elements_do_not_decide_alone() -> None:
    """A table of embeddings, in which the commonest words move most: twenty of 16,384 numbers."""
    sizes = np.full(16_384, 0.05)
    sizes[:20] = 10.0
    alike = {n: draw(999, (128, 128)) + draw(i, (128, 128)) for i, n in enumerate("abcd")}
    shaped = {n: x * sizes.reshape(128, 128) for n, x in (alike | {"e": draw(50, (128, 128))}).items()}
    assert found_by(Guards(), round_of(shaped)) == {"e": ["noise"]}


def test_what_is_compared_of_a_large_table_is_of_all_its_columns() -> None:
    table = np.arange(4096 * 64) % 64
    assert sorted(set(_picked(table).tolist())) == list(range(64))
    assert 0.8 * MOST < len(_picked(table)) <= MOST
    assert len(_picked(np.zeros(MOST))) == MOST


def test_a_replay_with_noise_is_noise() -> None:
    past = draw(70) * 20
    round_ = cohort(e=past + draw(80))
    assert found_by(Guards(), round_, moves_of(past)) == {"e": ["noise"]}


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
