"""Where a run's filter goes, and that no rule changes what it is given."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from client_app.algorithms import ALGORITHMS
from client_app.algorithms.rule import LocalContext, Sites
from client_app.job import LocalJob, LocalSettings
from common.datasets import Examples
from common.params import Params, scale, trainable
from common.slots import DIRECTION, LAST_MODEL
from tests.client_app.algorithms.small import CPU, assert_equal, halved, keep, local, made, mlp, some


def test_the_runs_filter_goes_where_the_run_says() -> None:
    for sites in ("gradient", "ascent", "perturbation", "sent", "gradient,sent"):
        found = made("fedsam", phi=halved, filter_sites=sites).sites
        on = {f.name for f in dataclasses.fields(Sites) if getattr(found, f.name) is halved}
        assert on == set(sites.split(","))
    both = made("fedfft", phi=halved, fft=keep, filter_sites="gradient").sites
    assert both.gradient is halved and both.perturbation is keep


def test_what_is_sent_is_filtered_once_and_the_model_is_not() -> None:
    plain, sent = local(made("fedavg")), local(made("fedavg", phi=halved, filter_sites="sent"))
    assert_equal(sent.update, scale(0.5, plain.update))


@given(seed=st.integers(0, 1000))
def test_no_rule_changes_what_it_is_given(seed: int) -> None:
    slots = {name: some(seed + i) for i, name in enumerate(("control", "direction", "dual", "drift"))}
    context = LocalContext(some(seed + 7), 0.1, slots, slots)
    g, w = some(seed + 8), some(seed + 9)
    kept = [{name: x.clone() for name, x in part.items()} for part in (g, w, context.anchor, *slots.values())]
    for name in ALGORITHMS:
        algorithm = made(name)
        algorithm.rule.direction(g, w, context)
        algorithm.ascent.offset({} if algorithm.ascent.blind else g, w, context)
        algorithm.rule.finish(w, 3, context)
    for part, before in zip((g, w, context.anchor, *slots.values()), kept, strict=True):
        assert_equal(part, before)


def without_weight(params: Params) -> Params:
    """A filter that turns what it is given."""
    return {name: torch.zeros_like(x) if name == "0.weight" else x for name, x in params.items()}


@pytest.mark.parametrize(
    ("name", "sites", "keys"),
    [
        ("fedsam", "ascent", {}),
        ("fedsam", "perturbation", {}),
        ("fedlesam", "perturbation", {}),
        ("fedvssam", "perturbation", {"vssam_reuse": True}),
    ],
)
def test_the_offset_is_filtered_where_the_run_says_also_where_no_gradient_makes_it(
    name: str, sites: str, keys: dict[str, bool]
) -> None:
    model = mlp()
    w = trainable(model)
    draw = np.random.default_rng(0)
    data = Examples(draw.normal(size=(15, 6)), draw.integers(0, 4, 15), 4)
    before = {n: x.detach() + 0.1 for n, x in w.items()}
    slots = {LAST_MODEL: before, DIRECTION: before}
    ctx = LocalContext({n: x.detach().clone() for n, x in w.items()}, 0.1, slots, slots)
    job = LocalJob(
        model, w, data, made(name, phi=without_weight, filter_sites=sites, **keys), LocalSettings(lr=0.1), CPU
    )
    offset = job.look(np.arange(5), ctx).offset
    assert offset is not None
    assert not offset["0.weight"].any() and offset["0.bias"].any()
