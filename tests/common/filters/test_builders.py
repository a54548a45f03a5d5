"""From settings and a model to its filter: every kind, which tensors, seeds, and off."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from common import traits
from common.filter_settings import FilterSettings
from common.filters import FILTERS, FftHighPass, Gd, LapD, build, filtered_names, keep, low_bins
from common.params import Params, trainable
from tests.common.filters.oracles import signal


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.GroupNorm(2, 8), nn.Embedding(30, 6), nn.Linear(64, 10)
    )


def gradients(model: nn.Module, seed: int = 0) -> Params:
    return {
        name: signal(p.numel(), seed + i).float().reshape(p.shape)
        for i, (name, p) in enumerate(trainable(model).items())
    }


ON = [kind for kind in FILTERS if kind != "none"]


def test_every_kind_can_be_built_and_nothing_else() -> None:
    assert list(FILTERS) == list(traits.FILTERS)


@pytest.mark.parametrize("kind", ON)
@pytest.mark.parametrize("keep_dc", [False, True])
def test_exactly_the_named_tensors_change(kind: str, keep_dc: bool) -> None:
    model, chosen_settings = net(), FilterSettings(kind, 0.1, keep_dc=keep_dc)
    g = gradients(model)
    out = build(chosen_settings, model)(g)
    assert list(out) == list(g)
    changed = [name for name in g if out[name] is not g[name]]
    assert changed == filtered_names(chosen_settings, model) == ["0.weight", "3.weight"]
    assert not any(torch.equal(out[name], g[name]) for name in changed)


@pytest.mark.parametrize(("kind", "ratio"), [("none", 0.05), *((k, 0.0) for k in ON if k != "row-mean")])
def test_no_filter_and_ratio_0_are_the_same_identity(kind: str, ratio: float) -> None:
    model = net()
    on_params = build(FilterSettings(kind, ratio), model)
    g = gradients(model)
    assert on_params is keep and on_params(g) is g
    assert filtered_names(FilterSettings(kind, ratio), model) == []


def test_a_model_that_is_all_too_small_is_left_alone() -> None:
    assert build(FilterSettings(), nn.Linear(5, 5)) is keep
    assert build(FilterSettings(min_ndim=5), net()) is keep


def test_names_at_the_default_ratio() -> None:
    model = nn.Linear(64, 64)
    assert filtered_names(FilterSettings(), model) == ["weight", "bias"]
    assert filtered_names(FilterSettings(min_ndim=2), model) == ["weight"]
    assert filtered_names(FilterSettings(layers="bias"), model) == ["bias"]
    assert filtered_names(FilterSettings(layers="bias", min_ndim=2), model) == []
    assert filtered_names(FilterSettings(keep_dc=True), model) == ["weight"]  # 64 would lose its mean only
    assert filtered_names(FilterSettings("lap-d", keep_dc=True), model) == ["weight", "bias"]


def test_the_shapes_reach_the_filters() -> None:
    model = net()
    g = gradients(model)["3.weight"].double()
    by_hand = {
        "fft": FftHighPass(0.1)(g.flatten()),
        "lap-d": LapD(0.1, 5)(g.flatten()),
        "gd": Gd(0.1, 2.0)(g.flatten()),
        "row-mean": g - g.mean(1, keepdim=True),
    }
    for kind, expected in by_hand.items():
        filtered = build(FilterSettings(kind, 0.1, kernel=5, sigma=2.0), model)({"3.weight": g})["3.weight"]
        torch.testing.assert_close(filtered, expected.reshape(g.shape), atol=1e-12, rtol=0)


def test_rows_are_those_of_the_order() -> None:
    model = net()
    g = gradients(model)["0.weight"].double()
    for order, expected in {
        "0123": g - g.mean((1, 2, 3), keepdim=True),
        "1023": g - g.mean((0, 2, 3), keepdim=True),
    }.items():
        out = build(FilterSettings("row-mean", order=order), model)({"0.weight": g})["0.weight"]
        torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)


def test_rows_need_two_axes_and_two_elements() -> None:
    model = nn.ModuleDict({"flat": nn.LayerNorm(64), "thin": nn.Linear(1, 64), "wide": nn.Linear(64, 1)})
    assert filtered_names(FilterSettings("row-mean"), model) == ["wide.weight"]


def test_high_and_low_take_the_same_number_of_bins() -> None:
    model = net()
    g = {"3.weight": torch.eye(640, dtype=torch.float64)[0].reshape(10, 64)}  # all bins alike
    gone = []
    for kind in ("fft", "fft-high", "random"):
        out = build(FilterSettings(kind, 0.1), model)(g)["3.weight"]
        gone.append(torch.nonzero(torch.fft.rfft(out.flatten()).abs() < 1e-9).flatten().tolist())
    z = low_bins(0.1, 640)
    assert gone[0] == list(range(z)) and gone[1] == list(range(321 - z, 321))
    assert len(gone[2]) == z and gone[2] not in gone[:2]


@pytest.mark.parametrize("kind", ON)
def test_a_filter_is_the_same_every_time_it_is_built(kind: str) -> None:
    model = net()
    g, how = gradients(model), FilterSettings(kind, 0.1, seed=3, order="random")
    first, second = build(how, model)(g), build(how, net())(g)
    assert all(torch.equal(first[name], second[name]) for name in g)


@pytest.mark.parametrize("how", [FilterSettings("random", 0.1), FilterSettings("fft", 0.1, order="random")])
def test_chance_follows_the_seed_and_the_name(how: FilterSettings) -> None:
    model = nn.ModuleDict({"a": nn.Linear(20, 20, bias=False), "b": nn.Linear(20, 20, bias=False)})
    g = {"a.weight": torch.ones(20, 20), "b.weight": torch.ones(20, 20)}
    g = {name: signal(400).reshape(20, 20) for name in g}
    zero, one = (build(replace(how, seed=seed), model)(g) for seed in (0, 1))
    assert not torch.allclose(zero["a.weight"], one["a.weight"])
    assert not torch.allclose(zero["a.weight"], zero["b.weight"])


SCRIPT = """
import torch
from torch import nn
from common.filters import FilterSettings, build
g = {"weight": torch.arange(400.0, dtype=torch.float64).sin().reshape(20, 20)}
how = FilterSettings("random", 0.1, order="random", seed=11)
result = build(how, nn.Linear(20, 20))(g)["weight"].sum(1).tolist()
"""


def test_chance_is_the_same_in_every_process() -> None:
    command = [sys.executable, "-c", f"{SCRIPT}print(result)"]
    other = subprocess.run(command, capture_output=True, text=True, check=True)
    here: dict[str, list[float]] = {}
    exec(SCRIPT, here)
    assert other.stdout.strip() == str(here["result"])


@pytest.mark.parametrize("kind", ["fft", "fft-high", "random", "row-mean"])
def test_in_any_order_a_projection_stays_one(kind: str) -> None:
    model = net()
    for order in ("0123", "1023", "3210", "random"):
        phi = build(FilterSettings(kind, 0.1, order=order), model)
        x, y = ({n: t.double() for n, t in gradients(model, seed).items()} for seed in (0, 50))
        once = phi(x)
        for name in filtered_names(FilterSettings(kind, 0.1, order=order), model):
            torch.testing.assert_close(phi(once)[name], once[name], atol=1e-12, rtol=0)
            inner = (once[name] * y[name]).sum()
            torch.testing.assert_close(inner, (x[name] * phi(y)[name]).sum(), atol=1e-10, rtol=0)
            assert once[name].norm() < x[name].norm()


@settings(max_examples=40)
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
    percent=st.integers(0, 99),
    min_ndim=st.integers(0, 4),
    kind=st.sampled_from(list(FILTERS)),
    keep_dc=st.booleans(),
    order=st.sampled_from(["0123", "1023", "10", "random"]),
)
def test_names_are_those_that_change_whatever_the_settings(
    shape: tuple[int, ...], percent: int, min_ndim: int, kind: str, keep_dc: bool, order: str
) -> None:
    model = nn.ParameterDict({"w": nn.Parameter(torch.ones(shape)), "one": nn.Parameter(torch.ones(()))})
    how = FilterSettings(kind, percent / 100, keep_dc=keep_dc, order=order, min_ndim=min_ndim)
    g: Params = {"w": torch.ones(shape), "one": torch.ones(())}
    out = build(how, model)(g)
    assert [name for name in g if out[name] is not g[name]] == filtered_names(how, model)
    assert all(t.isfinite().all() for t in out.values())
