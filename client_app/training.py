"""The local loop, one for all algorithms, in one fixed order.

    1 backward over all micro-batches          5 corrections of the rule (prox, control variate, ...)
    2 the data gradient g                      6 clip the total
    3 filter g                                 7 weight decay, coupled, never filtered
    4 mixing of the rule (server momentum)     8 momentum buffer and step

Stage 1 is in ``client_app.job``, 2 to 5 are the algorithm's (``client_app.algorithms``), 7 and 8 PyTorch's
SGD. The order matters: clipping before the filter would let the removed band eat the budget, and weight
decay must not be filtered.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.sgd import sgd

from client_app.algorithms.rule import Algorithm, Finish, LocalContext, Slots
from client_app.job import Diverged, LocalJob, LocalSettings, cut, noise_state, set_noise_state
from client_app.loss_scale import LossScale
from common.datasets import Examples
from common.errors import ModelError
from common.params import Params, copy_of, sub, trainable

Look = Literal["off", "updates", "gradients"]  # RunConfig.diagnostics


@dataclass(frozen=True)
class Trained:
    """What came out of one node's round."""

    update: Params  # trained minus received parameters, filtered if the run filters what is sent
    steps: int  # optimiser steps
    loss: float  # mean over the steps, each at the parameters it started from
    finish: Finish = field(default_factory=Finish)
    first: Params = field(default_factory=dict)  # the first step's data gradient, unfiltered
    start: Params = field(default_factory=dict)  # the gradient of all rows at the received model, unfiltered


def train(
    model: nn.Module,
    data: Examples,
    algorithm: Algorithm,
    settings: LocalSettings,
    device: torch.device,
    order: np.random.Generator,
    noise_seed: int,
    broadcast: Slots | None = None,
    memory: Slots | None = None,
    look: Look = "off",
    until: float = inf,
) -> Trained:
    """Train ``model`` in place on ``data`` and return its update.

    ``order`` shuffles the rows, ``noise_seed`` drives dropout; the same of both give the same bits on one
    kind of CPU. The last batch of an epoch may be smaller; with BatchNorm a single row left over belongs to
    the batch before. ``broadcast`` and ``memory`` are the server's and the node's slots, on ``device``.
    ``look`` says what to keep of the gradients on the way; it changes no bit of the training. ``until`` is
    the time, in seconds since 1970, after which no batch is begun. Raises OutOfTime then, Diverged when a
    loss is not finite, ModelError when BatchNorm1d would get a single row, and ValueError for no data or
    nothing to train.
    """
    if len(data) == 0:
        raise ValueError("no examples to train on")
    w = trainable(model)
    if not w:
        raise ValueError("the model has an empty parameter list: nothing in it takes a gradient")
    counts = torch.from_numpy(np.bincount(data.y, minlength=data.classes)).to(device)
    ctx = LocalContext(copy_of(w), settings.lr, broadcast or {}, memory or {}, counts)
    model.train()
    settings = replace(settings, fewest=_fewest_rows(model, settings.batch_size, len(data)))
    job = LocalJob(model, w, data, algorithm, settings, device, until)
    velocity: dict[str, Tensor] = {}
    losses: list[Tensor] = []
    first: Params = {}
    start: Params = {}
    with _own_noise(noise_seed, device):
        if look == "gradients":
            noise = noise_state(device)
            start = job.full_gradient(ctx)
            set_noise_state(noise, device)
        begun = algorithm.rule.begin(lambda: algorithm.sites.gradient(job.full_gradient(ctx)), ctx)
        now = _with_memory(ctx, begun)
        scale = LossScale() if settings.amp == "fp16" else None
        for rows in batches(len(data), settings, order):
            if scale is None:
                seen = job.look(rows, now)
            else:
                seen, scale = job.look_scaled(rows, now, scale)
            losses.append(seen.loss)
            if look != "off" and len(losses) == 1:
                first = copy_of(seen.gradient)
            direction = algorithm.rule.direction(algorithm.sites.gradient(seen.gradient), w, now)
            now = _with_memory(now, algorithm.ascent.after_step(seen.offset, direction, now))
            _step(w, direction, settings, velocity, decays=algorithm.rule.decays)
    mean_loss = _mean_loss(losses)
    trained = copy_of(w)
    finish = algorithm.finish(trained, len(losses), now)
    update = algorithm.sites.sent(sub(trained, ctx.anchor))
    return Trained(update, len(losses), mean_loss, finish, first, start)


def batches(rows: int, settings: LocalSettings, order: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """The row numbers of each optimiser step of a round: every row once an epoch, shuffled."""
    for _ in range(settings.epochs):
        yield from cut(order.permutation(rows), settings)


def _fewest_rows(model: nn.Module, batch_size: int, rows: int) -> int:
    """2 where BatchNorm trains, which makes little of a single row, else 1.

    Raises ModelError where it can make nothing of it, having one value a channel, and there is no second row.
    """
    kinds = [
        type(m) for m in model.modules() if m.training and isinstance(m, nn.modules.batchnorm._BatchNorm)
    ]
    if kinds and min(batch_size, rows) > 1:
        return 2
    if any(issubclass(kind, nn.BatchNorm1d) for kind in kinds):
        raise ModelError(
            f"BatchNorm1d takes batches of at least 2 rows; got batch-size {batch_size} and {rows} rows"
        )
    return 1


def _with_memory(ctx: LocalContext, slots: Slots) -> LocalContext:
    return replace(ctx, memory={**ctx.memory, **slots}) if slots else ctx


def _step(
    w: Params, direction: Params, settings: LocalSettings, velocity: dict[str, Tensor], decays: bool
) -> None:
    """One step of SGD in place. ``velocity`` holds the momentum buffers, by name."""
    for name, p in w.items():
        p.grad = direction.get(name)
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
            weight_decay=0.0 if decays else settings.weight_decay,
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
