"""What the in-process runner costs against a plain PyTorch loop and against Flower's simulation on Ray.

``python -m benchmarks.runner [REPEATS]``. Without Ray (``pip install "flwr[simulation]"``) that part is left
out and the result says so.
"""

import sys
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import federation, measure

EPOCHS = (1, 2, 5)
TARGETS = {"in-process / plain": 1.3, "in-process / ray": 1 / 3}
ENVIRONMENT = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def main(repeats: int) -> None:
    """Measure and save the result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        federation.make_data(folder)
        measure.save(
            "runner",
            {
                "task": f"{federation.CLIENTS} clients of {federation.ROWS} rows, MLP 784-200-10, "
                f"{federation.ROUNDS} rounds, batches of 50, one thread",
                "repeats": repeats,
                "against-plain-loop": {
                    f"local-epochs-{n}": against_plain(folder, n, repeats) for n in EPOCHS
                },
                "against-ray": {f"local-epochs-{n}": against_ray(folder, n, repeats) for n in EPOCHS}
                if find_spec("ray")
                else 'not measured: ray is not installed (pip install "flwr[simulation]")',
                "targets": TARGETS,
            },
        )


def against_plain(folder: Path, epochs: int, repeats: int) -> dict[str, float]:
    """CPU seconds of the work alone, in one warm process, after a check that it is the same work."""
    check_same_model(folder, epochs)
    ways = {"in-process": federation.in_process, "plain": federation.plain_loop}
    variants = {name: partial(measure.of_call, way, folder, epochs) for name, way in ways.items()}
    seconds = measure.in_turn(variants, repeats)
    return _with_ratio(seconds, "in-process", "plain")


def against_ray(folder: Path, epochs: int, repeats: int) -> dict[str, float]:
    """CPU seconds of a whole command and its processes, from a cold start."""
    command = [sys.executable, "-m", "benchmarks.federation"]
    variants = {
        way: partial(measure.of_command, [*command, way, str(folder), str(epochs)], ENVIRONMENT)
        for way in ("in-process", "ray")
    }
    seconds = measure.in_turn(variants, repeats)
    return _with_ratio(seconds, "in-process", "ray")


def check_same_model(folder: Path, epochs: int) -> None:
    """Fail unless both loops end with the same weights, up to rounding."""
    ours, plain = federation.in_process(folder, epochs), federation.plain_loop(folder, epochs)
    assert ours.keys() == plain.keys()
    for name, expected in plain.items():
        np.testing.assert_allclose(_float64(ours[name]), _float64(expected), rtol=0, atol=1e-5, err_msg=name)


def _with_ratio(seconds: dict[str, float], ours: str, other: str) -> dict[str, float]:
    rounded = {f"{name}-cpu-seconds": round(value, 2) for name, value in seconds.items()}
    return {**rounded, "ratio": round(seconds[ours] / seconds[other], 3)}


def _float64(x: NDArray[np.generic]) -> NDArray[np.float64]:
    return np.asarray(x, dtype=np.float64)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
