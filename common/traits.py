"""The algorithms, filters and weightings that a run can name, and what the rest of a run must know of each.

These are the lists that the configuration takes. What they compute stands under the same names in
``client_app.algorithms``, ``common.filters`` and ``strategies.presets``. Without PyTorch, as the
configuration is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from common.config import RunConfig


@dataclass(frozen=True)
class Algorithm:
    """Traits of an algorithm. The defaults are those of one that only changes a node's gradients."""

    in_span: bool = False  # known to combine nothing but a node's own inputs, so that ranks tell
    reads_steps: bool = False  # the server reads mean steps off updates, which momentum would inflate
    exact: bool = False  # node or server goes on computing with the very update that was sent
    own_step: bool = False  # it fixes the server's step itself
    subspace: bool = False  # updates and the server's slots travel as coordinates in a subspace

    @property
    def keeps_state(self) -> bool:
        """Whether the server keeps something that it makes of all updates as they are."""
        return self.exact or self.reads_steps


@dataclass(frozen=True)
class Filter:
    """Traits of a gradient filter."""

    cuts_low: bool = False  # it leaves nothing, or little, in the low band


@dataclass(frozen=True)
class Weighting:
    """Traits of a weighting."""

    scores: bool = True  # nodes get scores, which the weights follow
    labels: bool = False  # nodes send how many training rows of each class they have
    proxy: bool = False  # the server learns the weights on data of its own


ALGORITHMS: Mapping[str, "Callable[[RunConfig], Algorithm]"] = {
    "fedavg": lambda c: Algorithm(in_span=True),
    "fedprox": lambda c: Algorithm(in_span=True),
    "feddyn": lambda c: Algorithm(exact=True, own_step=True),
    "scaffold": lambda c: Algorithm(exact=True, reads_steps=True),
    "fedcm": lambda c: Algorithm(reads_steps=True),
    "fedsam": lambda c: Algorithm(),
    "fedfft": lambda c: Algorithm(),
    "fedvssam": lambda c: ALGORITHMS["fedcm" if c.vssam_direction == "global" else "scaffold"](c),
    "ssf": lambda c: Algorithm(exact=True, reads_steps=True, subspace=True),
    "mofedsam": lambda c: Algorithm(reads_steps=True),
    "fedgamma": lambda c: Algorithm(exact=True, reads_steps=True),
    "fedspeed": lambda c: Algorithm(exact=True, own_step=True),
    "fedsmoo": lambda c: Algorithm(exact=True, own_step=True),
    "fedlesam": lambda c: replace(ALGORITHMS[c.lesam_rule](c), in_span=False),
    "feddc": lambda c: Algorithm(exact=True, reads_steps=True, own_step=True),
    "fedlc": lambda c: Algorithm(),
}

FILTERS: Mapping[str, Filter] = {
    "fft": Filter(cuts_low=True),
    "lap-d": Filter(cuts_low=True),
    "gd": Filter(cuts_low=True),
    "fft-high": Filter(),
    "random": Filter(),
    "l2-rescale": Filter(),
    "row-mean": Filter(),
    "none": Filter(),
}

WEIGHTINGS: Mapping[str, Weighting] = {
    "uniform": Weighting(scores=False),
    "examples": Weighting(scores=False),
    "spectralfed": Weighting(),
    "spectralfuse": Weighting(),
    "shapfed": Weighting(),
    "cgsv": Weighting(),
    "feddisco": Weighting(labels=True),
    "fedawa": Weighting(),
    "fedlaw": Weighting(proxy=True),
}


def is_scored(weighting: object) -> bool:
    """Whether a weighting, as a ledger names it, scores nodes. One that this version does not know does."""
    return WEIGHTINGS.get(str(weighting), Weighting()).scores


def has_scores(contribution: object, weighting: object) -> bool:
    """Whether a run with these two keys, as a ledger names them, scores its nodes."""
    return contribution != "off" and is_scored(weighting)


def guards_at_work(guards: object, contribution: object, weighting: object) -> object:
    """What the key ``guards`` comes to: a run that scores nobody observes nothing, for it would cost."""
    return "off" if guards == "observe" and not has_scores(contribution, weighting) else guards


def filter_width(config: Mapping[str, object]) -> str:
    """How much a run's filter takes, in a word: a width of its own, where the run gives one, or the ratio."""
    own = {"lap-d": "kernel", "gd": "sigma"}.get(str(config.get("filter")), "")
    given = config.get(f"filter-{own}")
    return f"{own}={given}" if given else f"r={config.get('filter-ratio', '–')}"


def gives_weights(contribution: object, weighting: object, base_weighting: object) -> object:
    """The weighting whose weights a run with these keys uses."""
    return weighting if contribution == "weight" or not is_scored(weighting) else base_weighting


# Aggregations that no weight changes.
UNWEIGHED = ("median", "trimmed-mean", "krum", "multi-krum")

# What the configuration takes. To a type checker, which does not run the tables, any text.
if TYPE_CHECKING:
    AlgorithmName = str
    FilterName = str
    WeightingName = str
else:
    AlgorithmName = Literal[tuple(ALGORITHMS)]
    FilterName = Literal[tuple(FILTERS)]
    WeightingName = Literal[tuple(WEIGHTINGS)]
