"""The local loop against a slow one in plain tensors."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from client_app.algorithms.fedprox import FedProx
from client_app.job import LocalSettings
from common.datasets import Examples
from common.params import copy_of, trainable
from tests.client_app.training.loop import PLAIN, assert_close, examples, fft, mlp, run, without_low_bins


def slowly(
    w: list[Tensor], settings: LocalSettings, ratio: float, mu: float, data: Examples, order: int
) -> tuple[list[Tensor], list[float]]:
    """SGD on the two-layer model, one obvious line after the other."""
    draw = np.random.default_rng(order)
    anchor, velocity, losses = [p.clone() for p in w], [torch.zeros_like(p) for p in w], []
    for _ in range(settings.epochs):
        rows = draw.permutation(len(data))
        for start in range(0, len(rows), settings.batch_size):
            batch = rows[start : start + settings.batch_size]
            leaves = [p.clone().requires_grad_() for p in w]
            hidden = torch.tanh(torch.from_numpy(data.x[batch]) @ leaves[0].T + leaves[1])
            logits = hidden @ leaves[2].T + leaves[3]
            picked = logits.log_softmax(1)[range(len(batch)), data.y[batch]]
            loss = -picked.sum() / len(batch)
            losses.append(loss.item())
            g = [without_low_bins(x, ratio) for x in torch.autograd.grad(loss, leaves)]
            g = [x + mu * (p - a) for x, p, a in zip(g, w, anchor, strict=True)]
            length = math.sqrt(sum(float((x * x).sum()) for x in g))
            if settings.clip_norm and length > settings.clip_norm:
                g = [x * (settings.clip_norm / length) for x in g]
            g = [x + settings.weight_decay * p for x, p in zip(g, w, strict=True)]
            velocity = [settings.momentum * v + x for v, x in zip(velocity, g, strict=True)]
            w = [p - settings.lr * v for p, v in zip(w, velocity, strict=True)]
    return w, losses


CASES: dict[str, tuple[dict[str, Any], float, float]] = {
    "plain": ({}, 0, 0),
    "one epoch": ({"epochs": 1}, 0, 0),
    "one batch": ({"batch_size": 100}, 0, 0),
    "momentum": ({"momentum": 0.9}, 0, 0),
    "weight decay": ({"weight_decay": 0.3}, 0, 0),
    "clipping": ({"clip_norm": 0.2}, 0, 0),
    "filter": ({}, 0.3, 0),
    "prox": ({}, 0, 0.8),
    "filter and prox": ({}, 0.3, 0.8),
    "filter, decay": ({"weight_decay": 0.3}, 0.3, 0),
    "filter, clipping": ({"clip_norm": 0.2}, 0.3, 0),
    "prox, clipping": ({"clip_norm": 0.2}, 0, 3.0),
    "clipping, decay": ({"clip_norm": 0.2, "weight_decay": 0.5}, 0, 0),
    "all": ({"momentum": 0.7, "weight_decay": 0.3, "clip_norm": 0.3, "micro_batches": 3}, 0.3, 0.8),
}


@pytest.mark.parametrize("case", CASES)
def test_the_loop_is_the_slow_loop(case: str) -> None:
    changes, ratio, mu = CASES[case]
    settings = dataclasses.replace(PLAIN, **changes)
    model = mlp()
    before = copy_of(trainable(model))
    trained = run(model, settings, fft(ratio, FedProx(mu)))
    w, losses = slowly(list(before.values()), settings, ratio, mu, examples(), order=5)
    expected = dict(zip(before, w, strict=True))
    # Torch adds 1e-6 to the norm that it clips by.
    tolerance = 2e-5 if settings.clip_norm else 1e-12
    assert_close(copy_of(trainable(model)), expected, tolerance)
    assert_close(trained.update, {name: expected[name] - before[name] for name in before}, tolerance)
    assert trained.steps == len(losses)
    assert trained.loss == pytest.approx(sum(losses) / len(losses), rel=1e-4 if settings.clip_norm else 1e-6)


def test_clipping_does_clip_in_these_cases() -> None:
    clipped = run(mlp(), dataclasses.replace(PLAIN, clip_norm=0.2)).update
    free = run(mlp(), PLAIN).update
    assert all((clipped[name] - free[name]).abs().max() > 1e-2 for name in free)
