"""The local algorithms by name. One paper, one file.

A new one is a file, and a line here, in ``common.traits`` and in ``strategies.presets``.

==========  =============================================================================================
fedavg      plain local SGD                                      fedprox    + a pull to the global model
feddyn      + a dual that learns the node's gradient             feddc      + learnt drift and control
scaffold    + control variates                                   ssf        + control in a subspace
fedcm       + the server's momentum                              fedlc      calibrated logits
fedsam      the gradient a little way up                         fedfft     ... without low frequencies
mofedsam    fedsam and fedcm        fedgamma  fedsam and scaffold           fedvssam  one direction for both
fedspeed    a blend of gradients, and a dual                     fedsmoo    duals for both
fedlesam    the gradient a little way back along the global model's way
==========  =============================================================================================
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from client_app.algorithms.fedcm import FedCM
from client_app.algorithms.feddc import FedDC
from client_app.algorithms.feddyn import FedDyn
from client_app.algorithms.fedfft import fedfft
from client_app.algorithms.fedgamma import fedgamma
from client_app.algorithms.fedlc import CalibratedLoss
from client_app.algorithms.fedlesam import BackAlongTheWay
from client_app.algorithms.fedprox import FedProx
from client_app.algorithms.fedsam import Asam, Sam
from client_app.algorithms.fedsmoo import fedsmoo
from client_app.algorithms.fedspeed import fedspeed
from client_app.algorithms.fedvssam import fedvssam
from client_app.algorithms.mofedsam import mofedsam
from client_app.algorithms.rule import Algorithm, Ascent, LocalRule, Sites
from client_app.algorithms.scaffold import Scaffold, ScaffoldFullGradient
from client_app.algorithms.ssf import Ssf
from common.config import RunConfig
from common.params import ParamsFilter


@dataclass(frozen=True)
class Tools:
    """What algorithms are built with beside the configuration: maps of a model's tensors."""

    phi: ParamsFilter  # the run's filter
    fft: ParamsFilter  # FedFFT's, whatever the run filters
    project: ParamsFilter  # onto SSF's subspace of this round


def _sam(config: RunConfig) -> Ascent:
    return Asam(config.sam_rho) if config.sam_adaptive else Sam(config.sam_rho)


def _participants(config: RunConfig) -> bool:
    return config.duals == "participants"


_SCAFFOLD: dict[str, LocalRule] = {"I": ScaffoldFullGradient(), "II": Scaffold()}

ALGORITHMS: dict[str, Callable[[RunConfig, Tools], Algorithm]] = {
    "fedavg": lambda c, t: Algorithm(),
    "fedprox": lambda c, t: Algorithm(FedProx(c.prox_mu)),
    "feddyn": lambda c, t: Algorithm(FedDyn(c.dyn_alpha)),
    "scaffold": lambda c, t: Algorithm(_SCAFFOLD[c.scaffold_option]),
    "fedcm": lambda c, t: Algorithm(FedCM(c.mix, c.warm_start)),
    "fedsam": lambda c, t: Algorithm(ascent=_sam(c)),
    "fedfft": lambda c, t: fedfft(_sam(c), t.fft, c.fft_renorm),
    "fedvssam": lambda c, t: fedvssam(c.sam_rho, c.mix, c.vssam_reuse, c.vssam_direction == "control"),
    "ssf": lambda c, t: Algorithm(Ssf(t.project, c.weight_decay)),
    "mofedsam": lambda c, t: mofedsam(_sam(c), c.mix, c.warm_start),
    "fedgamma": lambda c, t: fedgamma(_sam(c)),
    "fedspeed": lambda c, t: fedspeed(
        c.sam_rho, c.speed_mu, c.speed_share, c.speed_normalise, _participants(c)
    ),
    "fedsmoo": lambda c, t: fedsmoo(c.sam_rho, c.dyn_alpha),
    "fedlesam": lambda c, t: replace(ALGORITHMS[c.lesam_rule](c, t), ascent=BackAlongTheWay(c.sam_rho)),
    "feddc": lambda c, t: Algorithm(FedDC(c.dc_alpha, _participants(c))),
    "fedlc": lambda c, t: Algorithm(loss=CalibratedLoss(c.lc_tau, c.lc_paper_loss)),
}


def build(config: RunConfig, tools: Tools) -> Algorithm:
    """The run's algorithm, with the run's filter at its sites beside those that the algorithm has itself."""
    algorithm = ALGORITHMS[config.algorithm](config, tools)
    sites: Sites = replace(algorithm.sites, **{site: tools.phi for site in config.sites})
    return replace(algorithm, sites=sites)
