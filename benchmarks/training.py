"""The training step that the costs of filters and diagnostics are put beside."""

from collections.abc import Callable

import torch
from torch import nn

from common.params import Params, trainable

SHAPE, CLASSES = (3, 32, 32), 10
CPU = torch.device("cpu")


def training_step(model: nn.Module, batch: int, device: torch.device = CPU) -> Callable[[], None]:
    """Forward, backward and SGD on a batch of random images, the same ones at every call."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(batch, *SHAPE, generator=random).to(device)
    y = torch.randint(CLASSES, (batch,), generator=random).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def gradients_of(model: nn.Module) -> Params:
    """Copies of the gradients that the last step left."""
    return {key: p.grad.clone() for key, p in trainable(model).items() if p.grad is not None}
