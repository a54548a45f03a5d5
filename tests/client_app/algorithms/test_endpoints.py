"""Where one paper's algorithm is another's, and that each does something once it is on."""

from typing import Any

import pytest

from client_app.algorithms import ALGORITHMS
from client_app.algorithms.rule import Algorithm
from common.params import length, sub
from tests.client_app.algorithms.small import OWN, C, V, assert_equal, halved, local, made

SAME: dict[str, tuple[Algorithm, Algorithm, Any, Any]] = {
    "FedProx without pull": (made("fedprox", prox_mu=0.0), made("fedavg"), None, None),
    "FedSAM of radius 0": (made("fedsam", sam_rho=0.0), made("fedavg"), None, None),
    "FedFFT of radius 0": (made("fedfft", sam_rho=0.0), made("fedavg"), None, None),
    "FedCM with its own gradient alone": (made("fedcm", mix=1.0), made("fedavg"), V, None),
    "MoFedSAM of radius 0": (made("mofedsam", sam_rho=0.0), made("fedcm"), V, None),
    "MoFedSAM with its own gradient alone": (made("mofedsam", mix=1.0), made("fedsam"), V, None),
    "FedGAMMA of radius 0": (made("fedgamma", sam_rho=0.0), made("scaffold"), C, OWN),
    "FedVSSAM with theta 1": (made("fedvssam", mix=1.0), made("fedsam"), V, None),
    "FedVSSAM's first round": (made("fedvssam"), made("fedsam"), None, None),
    "FedVSSAM of radius 0": (
        made("fedvssam", sam_rho=0.0),
        made("fedcm", warm_start=True),
        V,
        None,
    ),
    "FedVSSAM of radius 0, other reading": (
        made("fedvssam", sam_rho=0.0, vssam_direction="control"),
        made("scaffold"),
        C,
        OWN,
    ),
    "FedLESAM's first round": (made("fedlesam"), made("fedavg"), None, None),
    "FedLESAM-S's first round": (made("fedlesam", lesam_rule="scaffold"), made("scaffold"), C, OWN),
    "FedDyn's first round": (made("feddyn", dyn_alpha=0.4), made("fedprox", prox_mu=0.4), None, None),
    "SCAFFOLD with equal controls": (made("scaffold"), made("fedavg"), C, C),
    "SSF in the whole space": (made("ssf"), made("scaffold"), C, OWN),
    "FedLC without calibration": (made("fedlc", lc_tau=0.0), made("fedavg"), None, None),
    "FedSpeed of radius 0": (
        made("fedspeed", sam_rho=0.0, speed_mu=0.3),
        made("feddyn", dyn_alpha=0.3),
        None,
        None,
    ),
    "FedSMOO of radius 0": (made("fedsmoo", sam_rho=0.0), made("feddyn"), None, None),
}


@pytest.mark.parametrize("case", SAME)
def test_end_points(case: str) -> None:
    one, other, broadcast, memory = SAME[case]
    got, expected = (local(algorithm, broadcast, memory) for algorithm in (one, other))
    assert_equal(got.update, expected.update)
    assert got.steps == expected.steps == 6


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"fedavg", "fedlesam", "feddyn", "ssf"}))
def test_each_algorithm_is_not_fedavg_once_it_is_on(name: str) -> None:
    algorithm = made(name, prox_mu=0.5, fft=halved)
    got = local(algorithm, {**V, **C}, OWN).update
    plain = local(made("fedavg")).update
    assert float(length(sub(got, plain))) > 1e-4 * float(length(plain))
