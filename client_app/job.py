"""The gradients of a node's round: of a batch, of all rows, and where an ascent looks ahead.

They are unfiltered: what becomes of them is the local loop's (``client_app.training``).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from math import inf
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from client_app.algorithms.rule import Algorithm, LocalContext
from client_app.loss_scale import LossScale, is_finite
from common.batches import to_tensors
from common.datasets import Examples
from common.errors import SpecfedError
from common.params import Params


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


def cut(rows: NDArray[np.int64], settings: LocalSettings) -> list[NDArray[np.int64]]:
    """``rows`` in batches. A last one that would be too small belongs to the one before."""
    cuts = list(range(settings.batch_size, len(rows), settings.batch_size))
    if cuts and len(rows) - cuts[-1] < settings.fewest:
        cuts.pop()
    return np.split(rows, cuts)


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
            for rows in cut(np.arange(len(self.data)), self.settings):
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
        noise = noise_state(self.device)
        loss, g = self.gradient(rows, ctx, scale)
        offset = ascent.offset(sites.ascent(g), self.w, ctx)
        if offset is None:
            return Looked(loss, g, None)
        offset = sites.perturbation(offset)
        with _moved(self.w, offset), _kept_buffers(self.model):
            set_noise_state(noise, self.device)
            _, ahead = self.gradient(rows, ctx, scale)
        return Looked(loss, ascent.blend(g, ahead), offset)

    def look_scaled(
        self, rows: NDArray[np.int64], ctx: LocalContext, scale: LossScale
    ) -> tuple[Looked, LossScale]:
        """As ``look``, in fp16, and the next scale: an overflow is seen here, before a filter spreads it.

        The batch is then taken once more with half the factor, as if it had not been seen before, so that no
        row is left out. Raises Diverged when the loss itself is not finite, or no factor is small enough.
        """
        noise, buffers = noise_state(self.device), _buffer_copies(self.model)
        while True:
            seen = self.look(rows, ctx, scale)
            if is_finite(seen.gradient):
                return seen, scale.after(True)
            if not seen.loss.isfinite():
                raise Diverged(f"the loss became {seen.loss.item()} in fp16; amp=bf16 overflows later")
            if scale.factor <= 1:
                raise Diverged("the gradient overflowed in fp16; try amp=bf16")
            scale = scale.after(False)
            set_noise_state(noise, self.device)
            _put_back(buffers)


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


def noise_state(device: torch.device) -> list[Tensor]:
    states = [torch.default_generator.get_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def set_noise_state(states: list[Tensor], device: torch.device) -> None:
    torch.default_generator.set_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
