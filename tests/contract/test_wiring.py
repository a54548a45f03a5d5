"""Each option of an algorithm or weighting reaches the piece that it is for, and constants are the published ones."""

from typing import Any

import pytest

from client_app.algorithms.fedcm import FedCM
from client_app.algorithms.fedlc import CalibratedLoss
from client_app.algorithms.fedsam import Asam, Sam
from client_app.algorithms.scaffold import Scaffold, ScaffoldFullGradient
from client_app.algorithms.ssf import Ssf
from common.config import RunConfig
from common.errors import ConfigError
from common.filters import FilterSettings, L2Rescale, builders, smoothing
from common.params import Params
from strategies import presets
from strategies.fedlaw import FedLaw, Proxy
from strategies.guards import ROUNDS
from strategies.recipe import Recipe
from strategies.scorers import Discounted
from strategies.server_rule import Control, MeanDual, ReportedControl, Together
from strategies.signals import entropy
from tests.client_app.algorithms.small import made


def recipe(**keys: Any) -> Recipe:
    return presets.build(RunConfig.model_validate(keys))


@pytest.mark.parametrize("name", ["fedsam", "fedfft", "mofedsam", "fedgamma"])
def test_the_ascent_is_the_one_that_was_asked_for(name: str) -> None:
    assert made(name, sam_rho=0.3).ascent == Sam(0.3)
    assert made(name, sam_rho=0.3, sam_adaptive=True).ascent == Asam(0.3)


@pytest.mark.parametrize("name", ["fedcm", "mofedsam"])
def test_the_first_round_of_a_mixture_is_the_one_that_was_asked_for(name: str) -> None:
    assert made(name, mix=0.2).rule == FedCM(0.2)
    assert made(name, mix=0.2, warm_start=True).rule == FedCM(0.2, True)


def test_ssf_and_fedlc_get_all_that_is_theirs() -> None:
    def project(params: Params) -> Params:
        return params

    assert made("ssf", project=project, weight_decay=0.01).rule == Ssf(project, 0.01)
    assert made("fedlc", lc_tau=2.0, lc_paper_loss=True).loss == CalibratedLoss(2.0, True)


def test_both_halves_of_scaffold_take_the_same_option() -> None:
    assert made("scaffold", scaffold_option="I").rule == ScaffoldFullGradient()
    assert made("scaffold", scaffold_option="II").rule == Scaffold()
    assert recipe(algorithm="scaffold", scaffold_option="I").rule == ReportedControl()
    assert recipe(algorithm="scaffold", scaffold_option="II").rule == Control()


def test_duals_on_both_ends_have_the_algorithms_own_factor() -> None:
    keys = {"dyn_alpha": 0.3, "speed_mu": 0.7}
    assert recipe(algorithm="feddyn", **keys).rule == MeanDual(0.3)
    assert recipe(algorithm="fedspeed", **keys).rule == MeanDual(0.7)
    both = recipe(algorithm="fedsmoo", **keys).rule
    assert isinstance(both, Together) and MeanDual(0.3) in both.halves


def test_published_constants() -> None:
    assert Discounted() == Discounted(a=0.5, b=0.1)
    proxy = Proxy(1, lambda parameters, buffers, batch: next(iter(parameters.values())).sum())
    assert FedLaw(proxy) == FedLaw(proxy, learning_rate=0.01, betas=(0.5, 0.999), epochs=20)
    assert RunConfig().layer_shrinkage == 0.0 and entropy.RANK_ONE == 1e-6 and ROUNDS == 10


def test_fedlesam_brings_the_servers_half_of_its_rule() -> None:
    assert recipe(algorithm="fedlesam", lesam_rule="feddyn", dyn_alpha=0.3).rule == MeanDual(0.3)
    assert recipe(algorithm="fedlesam", lesam_rule="scaffold").rule == Control()


@pytest.mark.parametrize("name", ["feddyn", "fedspeed", "fedsmoo", "feddc"])
def test_who_fixes_the_servers_step_takes_no_other(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} takes server-optimizer=sgd and server-learning-rate=1"):
        RunConfig.read({"algorithm": name, "server-optimizer": "adam"}, "the test")


def test_the_width_of_a_gaussian_reaches_as_far_as_its_tail() -> None:
    assert len(smoothing.gaussian(5.4)) == 2 * 17 + 1  # ceil(16.2) on either side
    assert builders.FILTERS["l2-rescale"](FilterSettings("l2-rescale", 0.1, keep_dc=True), "w", (9, 9)) == (
        L2Rescale(0.1, True)
    )
