"""What contribution scores cost the server: 100 clients, a head of 100 classes, a model of ResNet-50's size.

``python -m benchmarks.scoring [REPEATS]``. Each client has a head update of its own. The other 25.6 million
parameters of 100 clients would take 10 GB, so that clients share four different sets of them in turn: each
set is far larger than any cache, and the sum reads every client's numbers from memory all the same.
All of it runs in one thread. A head of 1000 classes is read as well, for the memory that its signals take.
"""

import sys
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks import measure
from common.config import RunConfig
from common.models import Head
from strategies import presets
from strategies.aggregate import weighted_sum
from strategies.guards import NO_TRAIL, ROUNDS, Guards
from strategies.recipe import Recipe, RecipeState
from strategies.round import Reply, Round, Vector
from strategies.signals.alignment import alignment
from strategies.signals.entropy import entropies, entropy, head_entropy

CLIENTS, CLASSES, WIDTH = 100, 100, 2048
PARAMETERS = 25_600_000
TENSORS, SETS = 24, 4  # of the body; how many different ones there are
PERCENT, TIMES = 10.0, 5.0  # targets: at most so much of the aggregation, so many times faster than SVDs
PASSES = 1.5  # and an aggregation in at most the time of so many passes over its numbers
LARGE = (1000, 2048)  # a head whose float64 copies for all clients at once would take 1.6 GB
WEIGHTINGS = ("spectralfed", "spectralfuse")


def make_round() -> Round:
    """A round of the benchmark's clients, with numbers as small as those of updates."""
    draw = np.random.default_rng(0)

    def normal(*shape: int) -> NDArray[np.float32]:
        return draw.standard_normal(shape, dtype=np.float32) * np.float32(1e-3)

    size = (PARAMETERS - CLASSES * (WIDTH + 1)) // TENSORS
    bodies = [{f"body.{i}": normal(size) for i in range(TENSORS)} for _ in range(SETS)]
    replies = tuple(
        Reply(
            f"client-{i:03}",
            bodies[i % SETS] | {"fc.weight": normal(CLASSES, WIDTH), "fc.bias": normal(CLASSES)},
            {},
            100,
        )
        for i in range(CLIENTS)
    )
    model = {name: np.zeros_like(x) for name, x in replies[0].update.items()}
    return Round(1, model, Head("fc.weight", "fc.bias", (CLASSES, WIDTH)), replies)


def scoring_only(weighting: str) -> Recipe:
    """A weighting's recipe without the sum over the model and the guards: signals, scorer, weights."""
    recipe = presets.build(RunConfig.model_validate({"weighting": weighting}))
    return replace(
        recipe, guards=None, aggregate=lambda *_: {}, step=lambda state, model, update: (state, model)
    )


def trail_of(round_: Round) -> Vector:
    """Eleven earlier models, as the guards keep them."""
    trail = NO_TRAIL
    for reply in round_.replies[: ROUNDS + 1]:
        trail = Guards().after(trail, replace(round_, model=reply.update))
    return trail


def one_svd_a_client(matrices: Iterable[NDArray[np.generic]]) -> Vector:
    """The entropies as their formula reads: singular values in float64, client by client."""
    found = []
    for matrix in matrices:
        squares = np.linalg.svd(np.asarray(matrix, np.float64), compute_uv=False) ** 2
        p = squares / squares.sum()
        found.append(float(-(p * np.log(p)).sum()))
    return np.array(found)


def by_svd(recipe: Recipe) -> Recipe:
    """The same scores with the entropies from SVDs."""
    return replace(recipe, signals={**recipe.signals, "entropy": head_entropy(one_svd_a_client)})


def one_pass(round_: Round) -> None:
    """Read every number of every client once and add it to a float32: the speed of memory."""
    totals = {name: np.zeros_like(x) for name, x in round_.model.items()}
    for reply in round_.replies:
        for name, total in totals.items():
            np.add(total, reply.update[name], out=total)


def large_head() -> dict[str, dict[str, float]]:
    """CPU seconds of the signals for a large head, and the MiB that they hold at most beside the replies."""
    draw = np.random.default_rng(0)
    heads = [draw.standard_normal(LARGE, dtype=np.float32) for _ in range(SETS)]
    replies = tuple(Reply(f"client-{i:03}", {"w": heads[i % SETS]}, {}, 1) for i in range(CLIENTS))
    round_ = Round(1, {"w": heads[0]}, Head("w", None, LARGE), replies)
    found = {}
    for name, signal in {"entropy": entropy, "alignment": alignment}.items():
        tracemalloc.start()
        seconds = measure.of_call(signal, round_, np.ones(CLIENTS))
        peak = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        found[name] = {"cpu-seconds": round(seconds, 2), "peak-mib": round(peak, 1)}
    return found


def main(repeats: int) -> None:
    """Measure, check that both ways give the same entropies, and save the result."""
    round_ = make_round()
    heads = [reply.update["fc.weight"] for reply in round_.replies]
    np.testing.assert_allclose(one_svd_a_client(heads), entropies(heads), rtol=1e-9)
    weights = np.full(CLIENTS, 1 / CLIENTS)
    fast = {name: scoring_only(name) for name in WEIGHTINGS}
    recipes = fast | {f"{name} by svd": by_svd(recipe) for name, recipe in fast.items()}
    variants = {
        "one pass": partial(measure.of_call, one_pass, round_),
        "aggregation": partial(measure.of_call, lambda: dict(weighted_sum(round_, weights))),
        "guards": partial(measure.of_call, Guards().look, weights, round_, trail_of(round_)),
        **{
            name: partial(measure.of_call, recipe.run, RecipeState(), round_, round_.clients)
            for name, recipe in recipes.items()
        },
    }
    seconds = measure.in_turn(variants, repeats)
    measure.save(
        "scoring",
        {
            "task": f"{CLIENTS} clients, head {CLASSES}x{WIDTH} with bias, {PARAMETERS:,} parameters in "
            f"{TENSORS + 2} tensors, float32, one thread",
            "repeats": repeats,
            "cpu-seconds": {name: round(value, 3) for name, value in seconds.items()},
            "percent-of-the-aggregation": {
                name: round(100 * seconds[name] / seconds["aggregation"], 2)
                for name in (*WEIGHTINGS, "guards")
            },
            "times-faster-than-svd": {
                name: round(seconds[f"{name} by svd"] / seconds[name], 2) for name in WEIGHTINGS
            },
            "aggregation-in-passes": round(seconds["aggregation"] / seconds["one pass"], 2),
            f"large-head-{LARGE[0]}x{LARGE[1]}": large_head(),
            "targets": {
                "percent-of-the-aggregation": PERCENT,
                "times-faster-than-svd": TIMES,
                "aggregation-in-passes": PASSES,
            },
        },
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
