"""bf16 and fp16: parameters stay in float32, and steps that overflow are not taken."""

import dataclasses

import numpy as np
import pytest
import torch

from client_app.algorithms.rule import LocalRule
from client_app.training import Diverged
from common.params import Params, copy_of
from tests.client_app.training.loop import FULL, PLAIN, assert_close, examples, fft, filtered, mlp, run


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


def test_fp16_drops_the_steps_that_overflow_and_is_near_float32_otherwise() -> None:
    data = examples()
    data = dataclasses.replace(data, x=30 * data.x.astype(np.float32))
    settings = dataclasses.replace(PLAIN, lr=1e-3, epochs=12, amp="fp16")
    seen: list[Params] = []

    def noting(g: Params) -> Params:
        seen.append(copy_of(g))
        return g

    model = mlp().float()
    trained = run(model, settings, filtered(LocalRule(), noting), data)
    # 2^16 times a loss is too much for float16: the first steps halve the factor, and are not taken.
    assert 0 < trained.steps < 12 * 5 and trained.steps == len(seen)
    assert all(x.isfinite().all() for g in seen for x in g.values())
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    whole = run(mlp().float(), dataclasses.replace(settings, amp="off"), data=data)
    assert trained.loss == pytest.approx(whole.loss, rel=0.1)


def test_a_gradient_that_overflows_in_every_step_is_told() -> None:
    data = examples(rows=4)
    data = dataclasses.replace(data, x=data.x.astype(np.float32) * 1e6)
    with pytest.raises(Diverged, match="overflowed in fp16 in every local step; try amp=bf16"):
        run(mlp().float(), dataclasses.replace(PLAIN, epochs=1, amp="fp16"), data=data)
