"""A small net, a few rows and the local loop on them, in float64."""

import dataclasses

import numpy as np
import torch
from torch import Tensor, nn

from client_app.algorithms.rule import Algorithm, LocalRule, Sites
from client_app.job import LocalJob, LocalSettings
from client_app.training import Trained, train
from common.datasets import Examples
from common.filters import FftHighPass, lift, low_bins
from common.params import Params, ParamsFilter, trainable

CPU = torch.device("cpu")
PLAIN = LocalSettings(lr=0.2, epochs=2, batch_size=5)  # 22 rows: the last batch of an epoch has 2
FULL = dataclasses.replace(PLAIN, momentum=0.9, weight_decay=0.1, clip_norm=1.0)


def examples(rows: int = 22, features: int = 6, classes: int = 4, seed: int = 0) -> Examples:
    draw = np.random.default_rng(seed)
    return Examples(draw.normal(size=(rows, features)), draw.integers(0, classes, rows), classes)


def with_hole(row: int) -> Examples:
    data = examples()
    data.x[row] = np.nan
    return data


def mlp(seed: int = 0) -> nn.Module:
    """6 -> 7 -> 4 in float64; the hidden weight has 42 elements, the other tensors fewer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 4)).double()


def run(
    model: nn.Module,
    settings: LocalSettings,
    algorithm: Algorithm | None = None,
    data: Examples | None = None,
    order: int = 5,
    noise: int = 9,
) -> Trained:
    data = examples() if data is None else data
    return train(model, data, algorithm or Algorithm(), settings, CPU, np.random.default_rng(order), noise)


def job_of(model: nn.Module, data: Examples, settings: LocalSettings) -> LocalJob:
    return LocalJob(model, trainable(model), data, Algorithm(), settings, CPU)


def fft(ratio: float, rule: LocalRule | None = None) -> Algorithm:
    return filtered(rule or LocalRule(), lift(FftHighPass(ratio)))


def filtered(rule: LocalRule, phi: ParamsFilter) -> Algorithm:
    return Algorithm(rule, sites=Sites(gradient=phi))


def assert_equal(one: Params, other: Params) -> None:
    assert list(one) == list(other)
    for name, x in one.items():
        assert torch.equal(x, other[name]), name


def assert_close(one: Params, other: Params, tolerance: float = 1e-12) -> None:
    assert list(one) == list(other)
    for name, x in one.items():
        torch.testing.assert_close(x, other[name], atol=tolerance, rtol=tolerance)


def without_low_bins(g: Tensor, ratio: float) -> Tensor:
    spectrum = np.fft.fft(g.numpy().ravel())
    removed = low_bins(ratio, g.numel())
    spectrum[:removed] = 0
    spectrum[g.numel() - removed + 1 :] = 0  # the same frequencies with the other sign
    return torch.from_numpy(np.fft.ifft(spectrum).real.reshape(g.shape)) if removed else g
