"""The band that a filter removes: it moves by weight decay alone."""

import dataclasses

import pytest

from client_app.algorithms.fedprox import FedProx
from client_app.job import LocalSettings
from common.filters import low_bins
from common.params import Params, copy_of, trainable
from tests.client_app.training.loop import assert_close, fft, mlp, run, without_low_bins


def low_part(w: Params, ratio: float) -> Params:
    return {name: w[name] - without_low_bins(w[name], ratio) for name in w}


THIRTY = LocalSettings(lr=0.1, epochs=6, batch_size=5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_without_weight_decay_the_low_bins_never_move(momentum: float, mu: float) -> None:
    model = mlp()
    before = copy_of(trainable(model))
    trained = run(model, dataclasses.replace(THIRTY, momentum=momentum, clip_norm=1.0), fft(0.3, FedProx(mu)))
    assert trained.steps == 30
    assert_close(low_part(copy_of(trainable(model)), 0.3), low_part(before, 0.3))
    assert any(low_bins(0.3, x.numel()) and x.abs().max() > 0.1 for x in trained.update.values())


def test_weight_decay_shrinks_the_low_bins_by_the_same_factor_each_step() -> None:
    model = mlp()
    before = low_part(copy_of(trainable(model)), 0.3)
    run(model, dataclasses.replace(THIRTY, weight_decay=0.2), fft(0.3))
    factor = (1 - 0.1 * 0.2) ** 30
    assert_close(low_part(copy_of(trainable(model)), 0.3), {name: factor * x for name, x in before.items()})


def test_without_a_filter_the_low_bins_do_move() -> None:
    update = low_part(run(mlp(), THIRTY).update, 0.3)
    assert all(x.abs().max() > 1e-3 for x in update.values() if low_bins(0.3, x.numel()))
