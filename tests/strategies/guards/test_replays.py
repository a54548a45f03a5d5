"""Replays: what is made of models that everybody has received, and which of them are remembered."""

import math
from dataclasses import replace

import numpy as np
import pytest

from common.models import Head
from strategies.guards import MOST, NO_TRAIL, ROUNDS, Guards
from strategies.round import Reply, Round
from tests.strategies.guards.cohorts import SHAPE, cohort, draw, found_by, honest, moves_of


def test_the_model_itself_and_its_whole_way_are_replays() -> None:
    first, second, now = draw(70), draw(71), draw(72)
    trail = np.stack([np.concatenate([model.ravel(), np.zeros(12)]) for model in (first, second)])
    for sent in (now, -now, now - first, second, first - second):
        round_ = cohort(e=sent)
        round_.model["w"][:] = now
        assert found_by(Guards(), round_, trail) == {"e": ["replay"]}


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
