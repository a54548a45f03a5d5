"""SAM's two passes in the loop of training."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from client_app.job import LocalSettings
from client_app.training import train
from common.datasets import Examples
from common.params import Params, trainable
from tests.client_app.algorithms.small import CPU, local, made, mlp


class Noisy(nn.Module):
    """BatchNorm and dropout; counts its passes and keeps what dropout did."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.drop = mlp(), nn.BatchNorm1d(4).double(), nn.Dropout(0.5)
        self.masks: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        logits = self.norm(self.body(x))
        self.masks.append(self.drop(torch.ones_like(logits)) > 0)
        out: Tensor = logits * self.masks[-1]
        return out


def test_both_passes_of_sam_see_the_same_dropout_and_the_first_alone_is_learnt_from() -> None:
    model = Noisy()
    local(made("fedsam", sam_rho=0.5), model=model)
    assert len(model.masks) == 12
    pairs = list(zip(model.masks[::2], model.masks[1::2], strict=True))
    assert all(torch.equal(first, second) for first, second in pairs)
    assert not torch.equal(pairs[0][0], pairs[1][0])
    assert int(model.norm.num_batches_tracked) == 6
    plain = Noisy()
    local(made("fedsam", sam_rho=0.0), model=plain)
    assert not torch.equal(plain.norm.running_mean, model.norm.running_mean)  # the weights went elsewhere
    one = Noisy()
    local(made("fedavg"), model=one)
    torch.testing.assert_close(plain.norm.running_mean, one.norm.running_mean)


def test_the_ascent_leaves_the_parameters_exactly_where_they_were() -> None:
    # With a step of 0 nothing moves, whatever the radius.
    model = mlp()
    before = {name: p.detach().clone() for name, p in trainable(model).items()}
    draw = np.random.default_rng(0)
    data = Examples(draw.normal(size=(15, 6)), draw.integers(0, 4, 15), 4)
    train(model, data, made("fedsam", sam_rho=3.3), LocalSettings(lr=0.0), CPU, draw, 0)
    assert all(torch.equal(p, before[name]) for name, p in trainable(model).items())


@pytest.mark.parametrize("pieces", [2, 5])
def test_sam_of_a_batch_in_pieces_is_sam_of_the_batch(pieces: int) -> None:
    draw = np.random.default_rng(0)
    data = Examples(draw.normal(size=(15, 6)), draw.integers(0, 4, 15), 4)
    updates = []
    for micro in (1, pieces):
        settings = LocalSettings(lr=0.1, batch_size=5, micro_batches=micro)
        rng = np.random.default_rng(1)
        updates.append(train(mlp(), data, made("fedsam", sam_rho=0.3), settings, CPU, rng, 0).update)
    for name, x in updates[0].items():
        torch.testing.assert_close(updates[1][name], x, atol=1e-12, rtol=1e-12)


def test_sam_step_against_two_plain_gradients() -> None:
    draw = np.random.default_rng(0)
    data = Examples(draw.normal(size=(5, 6)), draw.integers(0, 4, 5), 4)
    model, twin = mlp(), mlp()
    update = train(
        model, data, made("fedsam", sam_rho=0.3), LocalSettings(lr=0.1, batch_size=5), CPU, draw, 0
    ).update

    def gradient() -> Params:
        twin.zero_grad()
        loss = nn.functional.cross_entropy(twin(torch.from_numpy(data.x)), torch.from_numpy(data.y))
        grads = torch.autograd.grad(loss, list(trainable(twin).values()))
        return dict(zip(trainable(twin), grads, strict=True))

    g = gradient()
    size = sum(float((x * x).sum()) for x in g.values()) ** 0.5
    with torch.no_grad():
        for name, p in trainable(twin).items():
            p += 0.3 * g[name] / size
    ahead = gradient()
    for name, x in update.items():
        torch.testing.assert_close(x, -0.1 * ahead[name], atol=1e-12, rtol=1e-12)
