"""A small net, small tensors and a round of a few steps, in float64."""

from typing import Any

import numpy as np
import torch
from torch import nn

from client_app.algorithms import Tools, build
from client_app.algorithms.rule import Algorithm, LocalContext
from client_app.job import LocalSettings
from client_app.training import Trained, train
from common.config import RunConfig
from common.datasets import Examples
from common.params import Params, scale, trainable
from common.slots import CONTROL, DIRECTION

CPU = torch.device("cpu")
SHAPES = {"weight": (8, 6), "bias": (5,)}


def some(seed: int, shapes: dict[str, tuple[int, ...]] = SHAPES) -> Params:
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=g, dtype=torch.float64) for name, shape in shapes.items()}


def keep(params: Params) -> Params:
    return params


def halved(params: Params) -> Params:
    """A filter that leaves a mark."""
    return scale(0.5, params)


def made(name: str, phi: Any = keep, fft: Any = keep, project: Any = keep, **config: Any) -> Algorithm:
    return build(RunConfig.model_validate({"algorithm": name, **config}), Tools(phi, fft, project))


def assert_equal(one: Params, other: Params) -> None:
    assert list(one) == list(other)
    for name, x in one.items():
        torch.testing.assert_close(x, other[name], atol=1e-13, rtol=1e-13)


def local(
    algorithm: Algorithm, broadcast: Any = None, memory: Any = None, model: nn.Module | None = None
) -> Trained:
    """A round of 6 steps of a small net in float64."""
    draw = np.random.default_rng(0)
    data = Examples(draw.normal(size=(15, 6)), draw.integers(0, 4, 15), 4)
    settings = LocalSettings(lr=0.1, epochs=2, batch_size=5)
    net = mlp() if model is None else model
    return train(net, data, algorithm, settings, CPU, np.random.default_rng(1), 2, broadcast, memory)


def mlp() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 4)).double()


def slot(seed: int) -> Params:
    return some(seed, {name: tuple(p.shape) for name, p in trainable(mlp()).items()})


ANCHOR, W, G = some(10), some(11), some(12)


def ctx(**slots: Any) -> LocalContext:
    return LocalContext(ANCHOR, 0.1, **slots)


V, C, OWN = {DIRECTION: slot(1)}, {CONTROL: slot(2)}, {CONTROL: slot(3)}
