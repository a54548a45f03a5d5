"""bf16 and fp16: parameters stay in float32, and what overflows is taken once more."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from client_app.algorithms.rule import LocalContext, LocalRule
from client_app.job import Diverged
from common.datasets import Examples
from common.params import Params, copy_of
from tests.client_app.training.loop import (
    FULL,
    PLAIN,
    assert_close,
    examples,
    fft,
    filtered,
    job_of,
    mlp,
    run,
)


def test_bf16_keeps_parameters_and_update_in_float32() -> None:
    data = examples()
    data = dataclasses.replace(data, x=data.x.astype(np.float32))
    seen: list[torch.dtype] = []
    model = mlp().float()
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    update = run(model, dataclasses.replace(FULL, amp="bf16"), fft(0.3), data).update
    assert set(seen) == {torch.bfloat16}
    assert {x.dtype for x in [*update.values(), *model.parameters()]} == {torch.float32}
    assert_close(update, run(mlp().float(), FULL, fft(0.3), data).update, 0.05)


def in_float32(scale: float = 1.0, rows: int = 22) -> Examples:
    data = examples(rows)
    return dataclasses.replace(data, x=scale * data.x.astype(np.float32))


def test_fp16_takes_a_batch_that_overflows_once_more_and_stays_near_float32() -> None:
    settings = dataclasses.replace(PLAIN, lr=1e-3, epochs=12, amp="fp16")
    seen: list[Params] = []

    def noting(g: Params) -> Params:
        seen.append(copy_of(g))
        return g

    model, passes = mlp().float(), Counter[str]()
    model.register_forward_hook(lambda *_: passes.update(["forward"]))
    trained = run(model, settings, filtered(LocalRule(), noting), in_float32(30))
    # 2^16 times a loss is too much for float16: the first batch is taken several times, and no step is lost.
    assert trained.steps == len(seen) == 12 * 5 < passes["forward"] < 12 * 5 + 17
    assert all(x.isfinite().all() for g in seen for x in g.values())
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    whole = run(mlp().float(), dataclasses.replace(settings, amp="off"), data=in_float32(30))
    assert trained.loss == pytest.approx(whole.loss, rel=0.02)
    assert_close(trained.update, whole.update, 0.02)


def test_a_node_of_one_batch_trains_in_fp16_and_its_statistics_and_noise_move_once() -> None:
    def model() -> nn.Module:
        return nn.Sequential(mlp().float(), nn.BatchNorm1d(4), nn.Dropout(0.5))

    settings = dataclasses.replace(PLAIN, epochs=1, amp="fp16")
    half, whole = model(), model()
    trained = run(half, settings, data=in_float32(30, rows=5))
    expected = run(whole, dataclasses.replace(settings, amp="off"), data=in_float32(30, rows=5))
    assert trained.steps == 1
    assert_close(dict(half.named_buffers()), dict(whole.named_buffers()), 0.02)
    assert_close(trained.update, expected.update, 0.1)


def test_the_gradient_of_all_rows_is_never_taken_in_fp16() -> None:
    whole, half = (
        job_of(model, in_float32(1e-4), settings).full_gradient(context(model))
        for model in [mlp().float()]
        for settings in (PLAIN, dataclasses.replace(PLAIN, amp="fp16"))
    )
    assert all(torch.equal(x, half[name]) for name, x in whole.items())


def context(model: nn.Module) -> LocalContext:
    return LocalContext(copy_of(dict(model.named_parameters())), 0.1, {}, {}, None)


def test_a_loss_that_is_not_finite_is_told_in_fp16_too() -> None:
    with pytest.raises(Diverged, match="the loss became nan in fp16; amp=bf16 overflows later"):
        run(mlp().float(), dataclasses.replace(PLAIN, amp="fp16"), data=in_float32(1e6, rows=4))


def test_a_gradient_that_no_factor_saves_is_told() -> None:
    model, passes = mlp().float(), Counter[str]()
    model.register_forward_pre_hook(lambda *_: passes.update(["forward"]))
    model.register_forward_hook(lambda module, inputs, output: GradientTooLarge.apply(output))
    with pytest.raises(Diverged, match="the gradient overflowed in fp16; try amp=bf16"):
        run(model, dataclasses.replace(PLAIN, amp="fp16"), data=in_float32())
    assert passes["forward"] == 17  # factors of 2^16 to 1


class GradientTooLarge(torch.autograd.Function):
    """Its output is its input, its gradient infinite."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return torch.full_like(g, torch.inf)
