"""SSF: four rounds by hand, of four coordinates with two active in each, and its subspace."""

import numpy as np
import pytest
import torch

from client_app.algorithms.rule import LocalContext
from client_app.algorithms.ssf import Ssf
from client_app.job import LocalSettings
from client_app.training import train
from common.codec import Codec, Coordinates
from common.datasets import Examples
from common.params import add, scale, trainable
from common.slots import CONTROL
from tests.client_app.algorithms.small import CPU, G, W, assert_equal, ctx, made, mlp, slot

ACTIVE = [(0, 1), (2, 3), (1, 2), (0, 1)]
TAKING_PART = [(1, 2), (1, 2), (1,), (1, 2)]
CURVATURE = {1: [1.0, 2, 1, 2], 2: [2.0, 1, 1, 1]}
OPTIMUM = {1: [1.0, 0, -1, 2], 2: [-1.0, 1, 0, 1]}
EXPECTED_W = [
    [-0.085, 0.095, 0, 0],
    [-0.085, 0.095, -0.095, 0.455],
    [-0.085, 0.1463, -0.1767, 0.455],
    [-0.1535, 0.19814625, -0.1767, 0.455],
]
EXPECTED_C = [
    [0.425, -0.475, 0, 0],
    [0.425, -0.475, 0.475, -2.275],
    [0.425, -0.36575, 0.44175, -2.275],
    [0.3425, -0.25923125, 0.44175, -2.275],
]


def test_four_rounds_of_ssf_by_hand() -> None:
    w, c = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    own = {i: torch.zeros(4, dtype=torch.float64) for i in (1, 2)}
    for active, clients, expected_w, expected_c in zip(
        ACTIVE, TAKING_PART, EXPECTED_W, EXPECTED_C, strict=True
    ):
        codec = Codec({"w": Coordinates(torch.tensor(active), (4,))})
        rule = Ssf(codec.project)
        sent = codec.project({"w": c})
        updates, changes = [], []
        for i in clients:
            context = LocalContext({"w": w}, 0.1, {CONTROL: sent}, {CONTROL: {"w": own[i]}})
            y = w.clone()
            for _ in range(2):
                g = torch.tensor(CURVATURE[i]) * (y - torch.tensor(OPTIMUM[i], dtype=torch.float64))
                y = y - 0.1 * rule.direction({"w": g}, {"w": y}, context)["w"]
            new = rule.finish({"w": y}, 2, context).memory[CONTROL]["w"]
            changes.append(new - own[i])
            own[i] = new
            updates.append(codec.decode(codec.encode({"w": y - w}))["w"])
            torch.testing.assert_close(updates[-1], y - w, atol=1e-15, rtol=0)
        w = w + torch.stack(updates).mean(0)
        c = c + torch.stack(changes).sum(0) / 2
        assert w.tolist() == pytest.approx(expected_w, abs=1e-12)
        assert c.tolist() == pytest.approx(expected_c, abs=1e-12)
        torch.testing.assert_close(c, (own[1] + own[2]) / 2, atol=1e-15, rtol=0)
        if len(clients) == 1:
            assert own[1].tolist() == pytest.approx([-0.95, 0.2185, 0.8835, -3.6], abs=1e-12)


def test_ssf_projects_the_weight_decay_with_the_gradient() -> None:
    codec = Codec(
        {"weight": Coordinates(torch.tensor([3, 7]), (8, 6)), "bias": Coordinates(torch.tensor([0]), (5,))}
    )
    d = Ssf(codec.project, weight_decay=0.5).direction(G, W, ctx())
    assert_equal(d, codec.project(add(G, scale(0.5, W))))
    assert Ssf.decays


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_ssf_never_leaves_its_subspace(decay: float) -> None:
    codec = Codec({n: Coordinates(torch.tensor([0]), tuple(p.shape)) for n, p in trainable(mlp()).items()})
    algorithm = made("ssf", project=codec.project, weight_decay=decay)
    draw = np.random.default_rng(0)
    data = Examples(draw.normal(size=(15, 6)), draw.integers(0, 4, 15), 4)
    settings = LocalSettings(lr=0.1, batch_size=5, weight_decay=decay)
    control = {CONTROL: codec.project(slot(2))}
    update = train(mlp(), data, algorithm, settings, CPU, draw, 0, control, {CONTROL: slot(3)}).update
    assert_equal(codec.project(update), update)
    assert all(x.any() for x in update.values())
