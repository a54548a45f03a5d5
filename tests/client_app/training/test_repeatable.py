"""The same bits again: with terms switched off, with the same seeds, beside any global state."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from client_app.algorithms.fedprox import FedProx
from client_app.algorithms.rule import Algorithm, LocalRule
from client_app.job import Diverged, LocalSettings
from common.filters import FilterSettings, build
from tests.client_app.training.loop import PLAIN, assert_equal, examples, fft, filtered, mlp, run, with_hole


@pytest.mark.parametrize(
    "algorithm",
    [
        Algorithm(FedProx(0.0)),
        filtered(LocalRule(), build(FilterSettings("none"), mlp())),
        filtered(LocalRule(), build(FilterSettings("fft", 0.0), mlp())),
        filtered(LocalRule(), build(FilterSettings("fft", 0.9, min_ndim=5), mlp())),
        filtered(FedProx(0.0), build(FilterSettings("none", 0.0), mlp())),
    ],
    ids=repr,
)
def test_a_term_that_is_off_is_fedavg(algorithm: Algorithm) -> None:
    settings = dataclasses.replace(PLAIN, momentum=0.9, weight_decay=0.1, clip_norm=0.5)
    assert_equal(run(mlp(), settings, algorithm).update, run(mlp(), settings).update)


def test_the_same_again_gives_the_same_bits_and_another_order_others() -> None:
    first = run(mlp(), PLAIN, fft(0.3)).update
    assert_equal(run(mlp(), PLAIN, fft(0.3)).update, first)
    other = run(mlp(), PLAIN, fft(0.3), order=6).update
    assert not all(torch.equal(other[name], first[name]) for name in first)


def dropout_model() -> nn.Module:
    return nn.Sequential(mlp(), nn.Dropout(0.5)).double()


def test_dropout_follows_the_noise_seed_alone() -> None:
    first = run(dropout_model(), PLAIN, noise=1).update
    torch.manual_seed(77)
    assert_equal(run(dropout_model(), PLAIN, noise=1).update, first)
    other = run(dropout_model(), PLAIN, noise=2).update
    assert not all(torch.equal(other[name], first[name]) for name in first)


def test_steps_do_not_share_their_dropout() -> None:
    still = LocalSettings(lr=1e-12, batch_size=1)  # the model all but stands still, so only noise differs
    sums = [0.0]
    for steps in range(1, 6):
        settings = dataclasses.replace(still, epochs=steps)
        sums.append(steps * run(dropout_model(), settings, data=examples(rows=1)).loss)
    of_step = np.diff(sums)
    assert of_step.max() - of_step.min() > 0.01


def test_global_random_state_stays_as_it_was() -> None:
    torch.manual_seed(3)
    before, numpys = torch.get_rng_state(), np.random.get_state()[1].copy()
    run(dropout_model(), PLAIN)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(Diverged):
        run(dropout_model(), PLAIN, data=with_hole(0))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpys)
