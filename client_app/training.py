"""The local loop, one for all algorithms, in one fixed order.

    1 backward over all micro-batches          5 corrections of the rule (prox, control variate, ...)
    2 the data gradient g                      6 clip the total
    3 filter g                                 7 weight decay, coupled, never filtered
    4 mixing of the rule (server momentum)     8 momentum buffer and step

Stages 3 to 5 are the rule's (``client_app.algorithms``); 7 and 8 are PyTorch's SGD. The order
matters: clipping before the filter would let the removed band eat the budget, and weight decay must
not be filtered.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.sgd import sgd

from client_app.algorithms.rule import LocalContext, LocalRule
from common.batches import to_tensors
from common.datasets import Examples
from common.errors import SpecfedError
from common.params import Params, copy_of, sub, trainable


class Diverged(SpecfedError):
    """Local training met a loss that is not a finite number."""


@dataclass(frozen=True)
class LocalSettings:
    """How a node trains in one round."""

    lr: float
    epochs: int = 1
    batch_size: int = 32
    micro_batches: int = 1  # pieces that a batch is computed in; the step is the same
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float = 0.0  # 0 is no limit
    bf16: bool = False  # autocast; parameters, gradients and filters stay float32


@dataclass(frozen=True)
class Trained:
    """What came out of one node's round."""

    update: Params  # trained minus received parameters
    steps: int  # optimiser steps really taken
    loss: float  # mean over the steps, each at the parameters it started from


def train(
    model: nn.Module,
    data: Examples,
    rule: LocalRule,
    settings: LocalSettings,
    device: torch.device,
    order: np.random.Generator,
    noise_seed: int,
) -> Trained:
    """Train ``model`` in place on ``data`` and return its update.

    ``order`` shuffles the rows, ``noise_seed`` drives dropout; the same of both give the same bits on one
    kind of CPU. The last batch of an epoch may be smaller. Raises Diverged when a loss is not finite, and
    ValueError for no data or nothing to train.
    """
    if len(data) == 0:
        raise ValueError("no examples to train on")
    w = trainable(model)
    if not w:
        raise ValueError("the model has an empty parameter list: nothing in it takes a gradient")
    ctx = LocalContext(anchor=copy_of(w), lr=settings.lr)
    velocity: dict[str, Tensor] = {}
    losses: list[Tensor] = []
    model.train()
    with _own_noise(noise_seed, device):
        for rows in batches(len(data), settings, order):
            model.zero_grad()
            losses.append(_backward(model, data, rows, settings, device))
            _step(w, rule, ctx, settings, velocity)
    loss = _mean_loss(losses)
    return Trained(sub(copy_of(w), ctx.anchor), steps=len(losses), loss=loss)


def batches(rows: int, settings: LocalSettings, order: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """The row numbers of each optimiser step of a round: every row once an epoch, shuffled."""
    for _ in range(settings.epochs):
        shuffled = order.permutation(rows)
        for start in range(0, rows, settings.batch_size):
            yield shuffled[start : start + settings.batch_size]


def _backward(
    model: nn.Module, data: Examples, rows: NDArray[np.int64], settings: LocalSettings, device: torch.device
) -> Tensor:
    """Leave the gradient of the batch's mean loss in the parameters' ``grad``; return that loss."""
    losses = []
    pieces = min(settings.micro_batches, len(rows))
    for piece in np.array_split(rows, pieces) if pieces > 1 else [rows]:
        x, y = to_tensors(data, piece, device)
        with torch.autocast(device.type, dtype=torch.bfloat16) if settings.bf16 else nullcontext():
            loss = nn.functional.cross_entropy(model(x), y) * (len(piece) / len(rows))
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach().float())
    return reduce(torch.add, losses)


def _step(
    w: Params, rule: LocalRule, ctx: LocalContext, settings: LocalSettings, velocity: dict[str, Tensor]
) -> None:
    """One step of SGD in place. ``velocity`` holds the momentum buffers, by name."""
    g = {name: p.grad for name, p in w.items() if p.grad is not None}
    for name, d in rule.direction(g, w, ctx).items():
        w[name].grad = d
    if settings.clip_norm > 0:
        nn.utils.clip_grad_norm_(w.values(), settings.clip_norm)
    moving = {name: (p, p.grad) for name, p in w.items() if p.grad is not None}
    buffers = [velocity.get(name) for name in moving]
    # What torch.optim.SGD does in a step. The class itself loads PyTorch's compiler, over a second of CPU
    # time in each of Flower's processes.
    with torch.no_grad():
        sgd(
            [p for p, _ in moving.values()],
            [d for _, d in moving.values()],
            buffers,
            weight_decay=settings.weight_decay,
            momentum=settings.momentum,
            lr=settings.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
    velocity.update({name: b for name, b in zip(moving, buffers, strict=True) if b is not None})


def _mean_loss(losses: list[Tensor]) -> float:
    """The mean, read from the device once: a check in every step would stall a GPU."""
    values = torch.stack(losses).double().cpu()
    bad = torch.nonzero(~values.isfinite())
    if len(bad):
        raise Diverged(f"the loss became {values[bad[0, 0]].item()} in local step {int(bad[0, 0]) + 1}")
    return float(values.mean())


@contextmanager
def _own_noise(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators for dropout, and put them back as they were."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # Not torch.manual_seed, which records a stack trace for GPUs that nobody has asked for.
        torch.default_generator.manual_seed(seed)
        for gpu in devices:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield
