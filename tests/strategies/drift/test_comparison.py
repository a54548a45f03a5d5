"""A round's drift: which gradients are compared, and that the parts are put together tensor by tensor."""

import tracemalloc

import numpy as np
import pytest
import torch

from common.filters import FftHighPass, lift
from common.params import Arrays
from strategies.drift.bands import layer_bands, over_layers
from strategies.drift.comparison import Gradients, compare, gradients_of
from strategies.drift.divergence import divergence
from strategies.round import Reply


def arrays(seed: int) -> Arrays:
    draw = np.random.default_rng(seed)
    shapes = {"w": (10, 12), "b": (12,), "v": (5, 8), "n": (64,)}
    return {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def reply(client: str, seed: int, gradient: bool = False, steps: int = 0) -> Reply:
    reports = {"gradient": arrays(seed + 100)} if gradient else {}
    return Reply(client, arrays(seed), {}, 10, steps=steps, reports=reports)


def test_updates_are_divided_by_steps_and_rate() -> None:
    replies = [reply("a", 1, steps=4), reply("b", 2, steps=10)]
    found = gradients_of(replies, "updates", lr=0.5)
    assert (found.source, found.clients, found.scales) == ("updates", ("a", "b"), (0.5, 0.2))
    assert found.arrays == (replies[0].update, replies[1].update)


def test_gradients_are_taken_as_they_are_if_all_clients_sent_them() -> None:
    replies = [reply("a", 1, gradient=True), reply("b", 2, gradient=True, steps=3)]
    found = gradients_of(replies, "gradients", lr=0.5)
    assert (found.source, found.clients, found.scales) == ("gradients", ("a", "b"), (1.0, 1.0))
    assert found.arrays == (replies[0].reports["gradient"], replies[1].reports["gradient"])
    assert gradients_of(replies, "updates", lr=0.5).source == "updates"


def test_one_client_without_a_gradient_turns_all_to_updates() -> None:
    replies = [reply("a", 1, gradient=True, steps=1), reply("b", 2, steps=2)]
    found = gradients_of(replies, "gradients", lr=1.0)
    assert (found.source, found.scales) == ("updates", (1.0, 0.5))


def test_a_client_without_a_number_of_steps_is_left_out() -> None:
    replies = [reply("a", 1), reply("b", 2, steps=1)]
    assert gradients_of(replies, "updates", lr=1.0).clients == ("b",)


def test_a_rate_that_has_decayed_to_nothing_leaves_nothing_to_compare() -> None:
    assert gradients_of([reply("a", 1, steps=3)], "updates", lr=0.0).clients == ()


def test_each_tensor_is_compared_on_its_own() -> None:
    clients = [arrays(seed) for seed in (1, 2, 3)]
    scales = (1.0, 0.5, 2.0)
    found = compare(Gradients("updates", ("a", "b", "c"), tuple(clients), scales))
    rows = {
        name: [s * c[name].astype(float) for s, c in zip(scales, clients, strict=True)] for name in "wbvn"
    }
    assert [layer.name for layer in found.layers] == ["w", "b", "v", "n"]
    for layer in found.layers:
        expected = divergence(rows[layer.name])
        assert layer.raw == expected and layer.filtered is None
    assert found.left_out == ("b",)  # 7 bins
    expected_bands = over_layers([layer_bands(rows[name]) for name in "wvn"])
    assert found.bands is not None
    np.testing.assert_allclose(found.bands.dist, expected_bands.dist)
    np.testing.assert_allclose(found.bands.std, expected_bands.std)
    np.testing.assert_allclose(found.bands.energy, expected_bands.energy)


def test_the_filter_is_tried_on_tensors_that_it_changes() -> None:
    clients = [arrays(seed) for seed in (1, 2)]
    filter_ = FftHighPass(0.05)
    some = lift({"w": filter_, "b": filter_, "v": filter_})
    found = compare(Gradients("gradients", ("a", "b"), tuple(clients), (1.0, 1.0)), some)
    tried = {layer.name: layer.filtered for layer in found.layers}
    assert tried["b"] is None and tried["n"] is None  # 12 elements; not chosen
    for name in ("w", "v"):
        rows = [filter_(torch.from_numpy(c[name].reshape(1, -1).astype(float)))[0].numpy() for c in clients]
        expected = divergence(rows)
        got = tried[name]
        assert got is not None
        assert got.absolute == pytest.approx(expected.absolute)
        assert got.cosine == pytest.approx(expected.cosine)
        assert got.absolute < divergence([c[name] for c in clients]).absolute  # type: ignore[operator]
    everywhere = compare(Gradients("gradients", ("a", "b"), tuple(clients), (1.0, 1.0)), lift(filter_))
    assert [layer.filtered is None for layer in everywhere.layers] == [False, True, False, False]


def test_a_model_without_a_tensor_that_has_bands_has_no_spectrum() -> None:
    small: tuple[Arrays, ...] = ({"b": np.ones(3)}, {"b": np.zeros(3)})
    found = compare(Gradients("updates", ("a", "b"), small, (1.0, 1.0)))
    assert found.bands is None and found.left_out == ("b",)
    assert found.layers[0].raw.absolute == pytest.approx(np.sqrt(3) / 2)


def test_memory_follows_the_largest_tensor_not_the_model() -> None:
    clients, length, tensors = 8, 50_000, 20
    draw = np.random.default_rng(0)
    one = {f"w{i}": draw.normal(size=length).astype(np.float32) for i in range(tensors)}
    gradients = Gradients("updates", tuple("abcdefgh"), (one,) * clients, (0.5,) * clients)
    tracemalloc.start()
    compare(gradients)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 * clients * length  # all spectra at once would take 8 * clients * length * tensors
