"""Every name that the configuration takes is there, and every pair of algorithm and filter trains."""

from itertools import product
from typing import get_args

import numpy as np
import pytest

from client_app.algorithms import ALGORITHMS
from common.config import RunConfig
from common.filters import FILTERS
from common.models import MODELS
from common.partition import KINDS
from common.traits import is_scored
from specfed.commands.options import PARTITIONS
from strategies import presets
from strategies.fedlaw import Proxy
from strategies.presets import OPTIMIZERS, PRESETS, SERVER_RULES
from strategies.recipe import RecipeState
from strategies.robust import AGGREGATES
from strategies.signals.alignment import VARIANTS
from strategies.signals.entropy import MEASURES
from strategies.weighting import BASE
from tests.strategies.rounds import whole_round

# Stands for the server's data, which only FedLAW asks for.
QUADRATIC = Proxy(1, lambda parameters, buffers, batch: (parameters["w"] - 1).square().mean())


def extra(weighting: str) -> dict[str, str]:
    """The keys without which a weighting is refused."""
    return {"proxy_data": "digits"} if weighting == "fedlaw" else {}


def choices(field: str) -> set[str]:
    return set(get_args(RunConfig.model_fields[field].annotation))


@pytest.mark.parametrize(
    ("field", "known"),
    [
        ("algorithm", ALGORITHMS),
        ("algorithm", SERVER_RULES),
        ("filter", FILTERS),
        ("weighting", PRESETS),
        ("base_weighting", BASE),
        ("aggregation", AGGREGATES),
        ("server_optimizer", OPTIMIZERS),
        ("entropy_norm", MEASURES),
        ("alignment", VARIANTS),
    ],
)
def test_the_configuration_takes_exactly_what_there_is(field: str, known: dict[str, object]) -> None:
    assert choices(field) == set(known)
    assert RunConfig.model_fields[field].default in known


@pytest.mark.parametrize("algorithm", SERVER_RULES)
@pytest.mark.parametrize("lesam_rule", ["fedavg", "scaffold", "feddyn"])
@pytest.mark.parametrize("vssam_direction", ["global", "control"])
def test_steps_are_read_where_the_servers_half_asks_for_them(
    algorithm: str, lesam_rule: str, vssam_direction: str
) -> None:
    run = RunConfig.model_validate(
        {"algorithm": algorithm, "lesam_rule": lesam_rule, "vssam_direction": vssam_direction}
    )
    assert run.traits.reads_steps == SERVER_RULES[algorithm](run).needs_steps


def test_every_model_is_named_where_the_key_is_described() -> None:
    description = RunConfig.model_fields["model"].description
    assert description == f"{', '.join(MODELS)}, or module:function"
    assert RunConfig().model in MODELS


def test_every_partition_is_named_where_the_option_is_described() -> None:
    assert f"How data are dealt: {', '.join(KINDS)}." == PARTITIONS


@pytest.mark.parametrize(("weighting", "mode"), list(product(PRESETS, sorted(choices("contribution")))))
def test_every_weighting_can_be_built_in_every_mode(weighting: str, mode: str) -> None:
    keys = {"weighting": weighting, "contribution": mode, **extra(weighting)}
    recipe = presets.build(RunConfig.model_validate(keys), QUADRATIC)
    assert callable(recipe.weigh) and callable(recipe.step)
    assert (recipe.scorer is not None) == (is_scored(weighting) and mode != "off")


@pytest.mark.parametrize(
    ("weighting", "aggregation", "optimizer"), list(product(PRESETS, AGGREGATES, OPTIMIZERS))
)
@pytest.mark.parametrize("around", [{}, {"update_clip": 1.0, "layer_shrinkage": 0.03}])
def test_every_weighting_goes_with_every_aggregate_and_server_step(
    weighting: str, aggregation: str, optimizer: str, around: dict[str, float]
) -> None:
    keys: dict[str, object] = {
        "weighting": weighting,
        "aggregation": aggregation,
        "server_optimizer": optimizer,
    }
    keys |= {**around, **extra(weighting), "server_learning_rate": 0.1}
    recipe = presets.build(RunConfig.model_validate(keys), QUADRATIC)
    draw = np.random.default_rng(0)
    model = {"w": draw.normal(size=(3, 4)).astype(np.float32), "b": np.zeros(3, np.float32)}
    start, state, labels = model, RecipeState(), {"a": (5, 5, 5), "b": (9, 1, 0), "c": (2, 3, 2)}
    for _ in range(2):
        updates = {
            name: {k: draw.normal(size=x.shape).astype(np.float32) for k, x in model.items()}
            for name in labels
        }
        round_ = whole_round(updates, model, **labels)
        state, outcome = recipe.run(state, round_, round_.clients)
        model = outcome.model
        assert outcome.weights.sum() == pytest.approx(1) and (outcome.weights >= 0).all()
    assert all(np.isfinite(x).all() and x.dtype == np.float32 for x in model.values())
    assert all((x != start[name]).all() for name, x in model.items())
