"""The local loop, one for all algorithms, in one fixed order.

    1 backward over all micro-batches          5 corrections of the rule (prox, control variate, ...)
    2 the data gradient g                      6 clip the total
    3 filter g                                 7 weight decay, coupled, never filtered
    4 mixing of the rule (server momentum)     8 momentum buffer and step

Stages 1 to 5 are the algorithm's (``client_app.algorithms``); 7 and 8 are PyTorch's SGD. The order
matters: clipping before the filter would let the removed band eat the budget, and weight decay must
not be filtered.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import reduce
from math import inf
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.sgd import sgd

from client_app.algorithms.rule import Algorithm, Finish, LocalContext, Slots
from client_app.loss_scale import LossScale, is_finite
from common.batches import to_tensors
from common.datasets import Examples
from common.errors import ModelError, SpecfedError
from common.params import Params, copy_of, sub, trainable

Look = Literal["off", "updates", "gradients"]  # RunConfig.diagnostics


class OutOfTime(SpecfedError):
    """Nobody waits for this round any more, or the site's policy has ended it."""


class Diverged(SpecfedError):
    """Local training met a loss that is not a finite number."""


Amp = Literal["off", "bf16", "fp16"]
_HALF: dict[Amp, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


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
    amp: Amp = "off"  # autocast; parameters, gradients and filters stay float32
    fewest: int = 1  # rows that a batch or a piece of one must have


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
            noise = _noise_state(device)
            start = job.full_gradient(ctx)
            _set_noise_state(noise, device)
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
        yield from _cut(order.permutation(rows), settings)


def _cut(rows: NDArray[np.int64], settings: LocalSettings) -> list[NDArray[np.int64]]:
    """``rows`` in batches. A last one that would be too small belongs to the one before."""
    cuts = list(range(settings.batch_size, len(rows), settings.batch_size))
    if cuts and len(rows) - cuts[-1] < settings.fewest:
        cuts.pop()
    return np.split(rows, cuts)


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


class Looked(NamedTuple):
    """What a step saw of its batch."""

    loss: Tensor
    gradient: Params  # the data gradient, taken where the ascent wants it
    offset: Params | None  # from where the parameters are; None: it was taken there


@dataclass(frozen=True)
class LocalJob:
    """What all steps of a node's round share. Gradients are taken where the model is at that moment."""

    model: nn.Module
    w: Params  # the model's parameters that take a gradient
    data: Examples
    algorithm: Algorithm
    settings: LocalSettings
    device: torch.device
    until: float = inf  # the time after which no batch is begun

    def gradient(
        self, rows: NDArray[np.int64], ctx: LocalContext, scale: LossScale | None = None
    ) -> tuple[Tensor, Params]:
        """A batch's mean loss and its gradient, by name; parameters that took no part are left out."""
        if time.time() > self.until:
            raise OutOfTime("the round took longer than the server waits for it, or the site's policy allows")
        for p in self.w.values():  # as zero_grad does, which looks for them through all modules
            p.grad = None
        losses = []
        pieces = min(self.settings.micro_batches, len(rows) // self.settings.fewest)
        for piece in np.array_split(rows, pieces) if pieces > 1 else [rows]:
            x, y = to_tensors(self.data, piece, self.device)
            half = _HALF.get(self.settings.amp)
            with nullcontext() if half is None else torch.autocast(self.device.type, dtype=half):
                loss = self.algorithm.loss(self.model(x), y, ctx)
            share = len(piece) / len(rows)
            weight = share if scale is None else share * scale.factor
            # None is one, without a tensor of it.
            loss.backward(None if weight == 1 else torch.full_like(loss, weight))  # type: ignore[no-untyped-call]
            losses.append(loss.detach().float() * share if pieces > 1 else loss.detach().float())
        g = {name: p.grad for name, p in self.w.items() if p.grad is not None}
        return reduce(torch.add, losses), g if scale is None else scale.unscaled(g)

    def full_gradient(self, ctx: LocalContext) -> Params:
        """The gradient of the mean loss over all rows; the model's buffers stay as they are.

        With BatchNorm each batch is normalised by itself, as in training. Never in fp16: it comes once a
        round, and small numbers would vanish there.
        """
        if self.settings.amp == "fp16":
            return replace(self, settings=replace(self.settings, amp="off")).full_gradient(ctx)
        total: Params = {}
        with _kept_buffers(self.model):
            for rows in _cut(np.arange(len(self.data)), self.settings):
                _, g = self.gradient(rows, ctx)
                share = len(rows) / len(self.data)
                total = {n: total[n] + share * x if n in total else share * x for n, x in g.items()}
        self.model.zero_grad()
        # A parameter that no batch reached has a gradient of zero.
        return {name: total.get(name, torch.zeros_like(p)) for name, p in ctx.anchor.items()}

    def look(self, rows: NDArray[np.int64], ctx: LocalContext, scale: LossScale | None = None) -> Looked:
        """The loss where the parameters are, and the gradient where the ascent takes it.

        Of two passes the first is the one that normalisation statistics learn from; the second sees the same
        dropout. The loss of an ascent that needs one pass alone is the loss at the offset.
        """
        ascent, sites = self.algorithm.ascent, self.algorithm.sites
        if ascent.blind:
            offset = ascent.offset({}, self.w, ctx)
            if offset is None:
                return Looked(*self.gradient(rows, ctx, scale), None)
            offset = sites.perturbation(offset)
            with _moved(self.w, offset):
                return Looked(*self.gradient(rows, ctx, scale), offset)
        noise = _noise_state(self.device)
        loss, g = self.gradient(rows, ctx, scale)
        offset = ascent.offset(sites.ascent(g), self.w, ctx)
        if offset is None:
            return Looked(loss, g, None)
        offset = sites.perturbation(offset)
        with _moved(self.w, offset), _kept_buffers(self.model):
            _set_noise_state(noise, self.device)
            _, ahead = self.gradient(rows, ctx, scale)
        return Looked(loss, ascent.blend(g, ahead), offset)

    def look_scaled(
        self, rows: NDArray[np.int64], ctx: LocalContext, scale: LossScale
    ) -> tuple[Looked, LossScale]:
        """As ``look``, in fp16, and the next scale: an overflow is seen here, before a filter spreads it.

        The batch is then taken once more with half the factor, as if it had not been seen before, so that no
        row is left out. Raises Diverged when the loss itself is not finite, or no factor is small enough.
        """
        noise, buffers = _noise_state(self.device), _buffer_copies(self.model)
        while True:
            seen = self.look(rows, ctx, scale)
            if is_finite(seen.gradient):
                return seen, scale.after(True)
            if not seen.loss.isfinite():
                raise Diverged(f"the loss became {seen.loss.item()} in fp16; amp=bf16 overflows later")
            if scale.factor <= 1:
                raise Diverged("the gradient overflowed in fp16; try amp=bf16")
            scale = scale.after(False)
            _set_noise_state(noise, self.device)
            _put_back(buffers)


def _with_memory(ctx: LocalContext, slots: Slots) -> LocalContext:
    return replace(ctx, memory={**ctx.memory, **slots}) if slots else ctx


@contextmanager
def _moved(w: Params, offset: Params) -> Iterator[None]:
    """The parameters at ``w + offset`` meanwhile, and then exactly where they were."""
    saved = {name: w[name].detach().clone() for name in offset}
    with torch.no_grad():
        for name, e in offset.items():
            w[name].add_(e)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, x in saved.items():
                w[name].copy_(x)


@contextmanager
def _kept_buffers(model: nn.Module) -> Iterator[None]:
    """The model's buffers (normalisation statistics) as they were, whatever forward passes do."""
    saved = _buffer_copies(model)
    try:
        yield
    finally:
        _put_back(saved)


def _buffer_copies(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    return [(b, b.clone()) for b in model.buffers()]


def _put_back(saved: list[tuple[Tensor, Tensor]]) -> None:
    for b, x in saved:
        b.copy_(x)


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


def _noise_state(device: torch.device) -> list[Tensor]:
    states = [torch.default_generator.get_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set_noise_state(states: list[Tensor], device: torch.device) -> None:
    torch.default_generator.set_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
