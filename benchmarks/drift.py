"""What drift diagnostics cost the server in a round: ResNet-20, 10 clients, one CPU thread.

Beside them stands what one client's training costs in the same round: steps of 50 images of 3x32x32.
``python -m benchmarks.drift [REPEATS]``
"""

import sys
import tracemalloc
from functools import partial

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import nn

from benchmarks import measure
from benchmarks.training import CLASSES, CPU, SHAPE, training_step
from common import models
from common.config import RunConfig
from common.datasets import Examples
from common.params import copy_of, to_arrays, trainable
from server_app.drift import Diagnostics, diagnostics
from server_app.probe import make_probe
from strategies.flower import RoundResult, Verdict
from strategies.round import Reply

CLIENTS, ROWS = 10, 100


def make_result(model: nn.Module) -> RoundResult:
    """A round in which every client sent an update of its own."""
    draw = np.random.default_rng(0)
    received = to_arrays(copy_of(trainable(model)))
    replies = [
        Reply(
            f"client-{i:02}",
            {n: 1e-3 * draw.standard_normal(x.shape, dtype=np.float32) for n, x in received.items()},
            {},
            500,
            steps=10,
        )
        for i in range(CLIENTS)
    ]
    verdicts = tuple(Verdict(reply.client, "accepted", reply=reply) for reply in replies)
    return RoundResult(1, verdicts, 1.0, sent={reply.client: received for reply in replies})


def peak_mib(looking: Diagnostics, result: RoundResult) -> float:
    """The most memory that one look takes beside the replies."""
    tracemalloc.start()
    looking.look(result, 0.1)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return peak


def main(repeats: int) -> None:
    """Measure and save the result."""
    torch.set_num_threads(1)
    model = models.build("resnet20", SHAPE, CLASSES, seed=0)
    result = make_result(model)
    shapes = {name: tuple(p.shape) for name, p in trainable(model).items()}
    draw = np.random.default_rng(0)
    data = Examples(draw.integers(0, 256, (ROWS, *SHAPE), dtype=np.uint8), np.arange(ROWS) % CLASSES, CLASSES)
    probe = make_probe(model, models.resolve_head(model, CLASSES), data, ROWS, CPU)
    filtered = diagnostics(RunConfig(diagnostics="updates", filter="fft"), shapes, None)
    config = RunConfig(diagnostics="updates", filter="none")
    unfiltered, probed = diagnostics(config, shapes, None), diagnostics(config, shapes, probe)
    variants = {
        "training step of one client": partial(measure.of_call, training_step(model, 50)),
        "filtered updates": partial(measure.of_call, filtered.look, result, 0.1),
        "unfiltered updates, filter tried": partial(measure.of_call, unfiltered.look, result, 0.1),
        f"the same and {ROWS} probe rows": partial(measure.of_call, probed.look, result, 0.1),
    }
    measure.in_turn(variants, 1)  # warms up
    seconds = measure.in_turn(variants, repeats)
    measure.save(
        "drift",
        {
            "task": f"ResNet-20 with GroupNorm, {CLIENTS} clients, one thread, one round",
            "repeats": repeats,
            "cpu-seconds": {name: round(value, 3) for name, value in seconds.items()},
            "peak-mib": round(peak_mib(unfiltered, result), 1),
        },
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
