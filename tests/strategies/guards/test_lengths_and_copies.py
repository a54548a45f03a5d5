"""Empty updates and copies: lengths beside the typical one, and cosines beside what everybody received."""

import math

import numpy as np
import pytest

from common.models import Head
from common.params import Arrays
from strategies.guards import Guards
from strategies.round import Reply, Round
from tests.strategies.guards.cohorts import EQUAL, SHAPE, cohort, draw, found_by, honest, moves_of, round_of


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


def test_what_is_alike_in_the_models_own_moves_alone_is_no_copy() -> None:
    """With momentum on the server's side most of a step is the same for everybody."""
    past = draw(70) * 30
    round_ = round_of({name: past + honest(i) for i, name in enumerate("abcd")})
    assert found_by(Guards(), round_, moves_of(past)) == {}
    assert set(found_by(Guards(), round_)) == set("abcd")
