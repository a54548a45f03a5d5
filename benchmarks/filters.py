"""What the gradient filters cost: percent of a training step on one CPU thread.

A step is forward, backward and SGD on 50 images of 3x32x32; the models are ResNet-20 and ResNet-18 with
GroupNorm. ``python -m benchmarks.filters [REPEATS]``
"""

import sys
from collections.abc import Callable
from functools import partial
from math import ceil

import torch
from torch import Tensor, nn

from benchmarks import measure
from benchmarks.training import CLASSES, SHAPE, gradients_of, training_step
from common import models
from common.filters import FilterSettings, build, low_bins
from common.params import Params

BATCH = 50
RATIO = 0.05
KERNEL = 17
SIGMA = 5.3
TARGETS = {  # percent of a step
    "resnet20": {"fft": 1.2, "lap-d": 0.7, "gd": 1.1},
    "resnet18": {"fft": 9.0, "lap-d": 8.0, "gd": 8.0},
}
KINDS = ("fft", "lap-d", "gd", "fft-high", "random", "l2-rescale", "row-mean")


def tensor_by_tensor(work: Callable[[Tensor], Tensor], g: Params) -> Params:
    """The obvious loop around an obvious filter of one signal."""
    names = {name: x for name, x in g.items() if low_bins(RATIO, x.numel())}
    return g | {name: work(x.flatten()).view_as(x) for name, x in names.items()}


def naive_fft(x: Tensor) -> Tensor:
    """The filter as its paper writes it."""
    spectrum = torch.fft.rfft(x)
    spectrum[: low_bins(RATIO, len(x))] = 0
    filtered: Tensor = torch.fft.irfft(spectrum, n=len(x))
    return filtered


def naive_lap_d(x: Tensor) -> Tensor:
    """The moving average by PyTorch's pooling."""
    average = nn.functional.avg_pool1d(x[None, None], KERNEL, 1, padding=KERNEL // 2, count_include_pad=False)
    return x - average[0, 0]


def naive_gd(x: Tensor) -> Tensor:
    """The Gaussian average by PyTorch's convolution."""
    radius = ceil(3 * SIGMA)
    weights = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / SIGMA) ** 2)[None, None]
    both = torch.stack([x, torch.ones_like(x)])[:, None]
    sums = nn.functional.conv1d(both, weights, padding=radius)
    return x - sums[0, 0] / sums[1, 0]


NAIVE = {"fft": naive_fft, "lap-d": naive_lap_d, "gd": naive_gd}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet20": lambda: models.build("resnet20", SHAPE, CLASSES, seed=0),
    "resnet18": lambda: models.build("resnet18", SHAPE, CLASSES, seed=0),
}


def of_model(name: str, repeats: int) -> dict[str, object]:
    """Measure all variants in turn; AssertionError if a filter and its naive form differ."""
    model = MODELS[name]()
    step = training_step(model, BATCH)
    step()  # also warms up
    g = gradients_of(model)
    work: dict[str, Callable[[], object]] = {"step": step}
    for kind in KINDS:
        filter_ = build(FilterSettings(kind, RATIO), model)
        work[kind] = partial(filter_, g)
        if kind in NAIVE:
            work[f"naive-{kind}"] = partial(tensor_by_tensor, NAIVE[kind], g)
            ours = filter_(g)
            for key, expected in tensor_by_tensor(NAIVE[kind], g).items():
                scale = max(1e-30, expected.abs().max().item())
                torch.testing.assert_close(ours[key] / scale, expected / scale, rtol=0, atol=1e-4)
    variants = {key: partial(measure.of_call, call) for key, call in work.items()}
    seconds = measure.in_turn(variants, repeats)
    percent = {key: round(100 * s / seconds["step"], 2) for key, s in seconds.items() if key != "step"}
    return {
        "repeats": repeats,
        "cpu-milliseconds": {key: round(1000 * value, 3) for key, value in seconds.items()},
        "percent-of-a-step": percent,
        "target-percent": TARGETS[name],
    }


def main(repeats: int) -> None:
    """Measure both models, the large one a fifth as often, and save the result."""
    torch.set_num_threads(1)
    measure.save(
        "filters",
        {
            "task": "batch of 50 of 3x32x32, GroupNorm, one thread, ratio 0.05",
            "resnet20": of_model("resnet20", repeats),
            "resnet18": of_model("resnet18", max(3, repeats // 5)),
        },
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
