"""What it is worth that a node's processes keep freed memory: CPU time of a training step, one thread.

``python -m benchmarks.allocator [REPEATS]``. glibc reads these settings when a process starts, so each way is
measured in processes of its own, in turn.
"""

import os
import subprocess
import sys
from functools import partial
from statistics import median

import torch

from benchmarks import measure
from benchmarks.training import CLASSES, SHAPE, training_step
from common import models
from specfed.launcher.start import KEPT_MEMORY

BATCH, STEPS = 50, 15
WAYS: dict[str, dict[str, str]] = {"kept": KEPT_MEMORY, "glibc's own": {}}


def main(repeats: int) -> None:
    """Measure and save the result."""
    measure.save(
        "allocator",
        {
            "task": f"step of {BATCH} images of 3x32x32, median of {STEPS} in a process, one thread",
            "repeats": repeats,
            **{name: of_model(name, repeats) for name in ("resnet20", "cnn5")},
        },
    )


def of_model(name: str, repeats: int) -> dict[str, float]:
    """Milliseconds a step in each way, and their ratio."""
    ways = {way: partial(_in_a_process, name, environment) for way, environment in WAYS.items()}
    seconds = measure.in_turn(ways, repeats)
    milliseconds = {way: round(1000 * value, 1) for way, value in seconds.items()}
    return {**milliseconds, "ratio": round(seconds["kept"] / seconds["glibc's own"], 3)}


def step_seconds(name: str) -> float:
    """CPU seconds of a step in this process."""
    torch.set_num_threads(1)
    step = training_step(models.build(name, SHAPE, CLASSES, seed=0), BATCH)
    step()
    return median(measure.of_call(step) for _ in range(STEPS))


def _in_a_process(name: str, settings: dict[str, str]) -> float:
    environment = {key: value for key, value in os.environ.items() if key not in KEPT_MEMORY}
    environment |= settings
    command = [sys.executable, "-m", "benchmarks.allocator", "step", name]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    if sys.argv[1:2] == ["step"]:
        print(step_seconds(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
