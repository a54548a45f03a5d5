"""What the gradient filter costs: percent of a training step of ResNet-20 on one CPU thread.

A step is forward, backward and SGD on 50 images of 3x32x32. ``python -m benchmarks.filters [REPEATS]``
"""

import sys
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks import measure
from common import models
from common.filters import FftHighPass, lift, low_bins
from common.params import Params, trainable

RATIO = 0.05
TARGET = 2.0  # percent of a step


def naive(g: Params) -> Params:
    """The filter as its paper writes it: tensor by tensor."""
    return {name: _high_pass(x.flatten()).view_as(x) for name, x in g.items()}


def _high_pass(x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(x)
    spectrum[: low_bins(RATIO, len(x))] = 0
    filtered: Tensor = torch.fft.irfft(spectrum, n=len(x))
    return filtered


def main(repeats: int) -> None:
    """Measure, check that both give the same gradients, and save the result."""
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, 32, 32, generator=random)
    y = torch.randint(10, (50,), generator=random)
    model = models.build("resnet20", (3, 32, 32), 10, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        loss: Tensor = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    step()  # also warms up
    g = {name: p.grad.clone() for name, p in trainable(model).items() if p.grad is not None}
    lifted = lift(FftHighPass(RATIO))
    for name, expected in naive(g).items():
        torch.testing.assert_close(lifted(g)[name], expected, rtol=0, atol=1e-6)

    variants = {
        "step": partial(measure.of_call, step),
        "naive": partial(measure.of_call, naive, g),
        "lift": partial(measure.of_call, lifted, g),
    }
    seconds = measure.in_turn(variants, repeats)
    percent = {name: 100 * seconds[name] / seconds["step"] for name in ("naive", "lift")}
    measure.save(
        "filters",
        {
            "task": "ResNet-20 with GroupNorm, batch of 50 of 3x32x32, one thread, ratio 0.05",
            "repeats": repeats,
            "cpu-milliseconds": {name: round(1000 * value, 3) for name, value in seconds.items()},
            "percent-of-a-step": {name: round(value, 2) for name, value in percent.items()},
            "target-percent": TARGET,
        },
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
