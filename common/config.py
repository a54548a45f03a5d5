"""A run's configuration: every knob, its range and its default, checked once where it enters.

Keys are flat and written in kebab-case, as Flower users know them. The same keys stand with the same
defaults in ``[tool.flwr.app.config]`` of pyproject.toml, because Flower refuses to override undeclared
ones. What algorithms and weightings are said to be like stands in ``common.traits``.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from common.errors import ConfigError, nearest
from common.filter_settings import NATURAL, FilterSettings
from common.text import kebab
from common.traits import ALGORITHMS, WEIGHTINGS, Algorithm, AlgorithmName, FilterName, WeightingName

Value = str | int | float | bool

Share = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Negative = Annotated[float, Field(lt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

FEWEST_PROBES = 4  # rows on which models' features can be compared
NAME_PATTERN = r"^[A-Za-z0-9._-]{1,60}$"  # of a node
DEVICE_PATTERN = r"^(auto|cpu|cuda(:\d+)?)$"
_OWN_DEVICE_PATTERN = r"^$|" + DEVICE_PATTERN  # of a node, which may leave it to the run
_RUN_NAME_PATTERN = r"^[A-Za-z0-9._-]{0,40}$"
_ORDER_PATTERN = r"^[0-9]{1,8}$|^random$"
_SITE = "(gradient|ascent|perturbation|sent)"
SITES_PATTERN = rf"^{_SITE}(,{_SITE})*$"
IN_WORDS = {  # what text that does not match should be
    NAME_PATTERN: 'takes 1 to 60 letters, digits, ".", "_" and "-"',
    _RUN_NAME_PATTERN: 'takes at most 40 letters, digits, ".", "_" and "-"',
    DEVICE_PATTERN: "takes auto, cpu, cuda, or cuda:1 and the like",
    _OWN_DEVICE_PATTERN: "takes auto, cpu, cuda, or cuda:1 and the like",
    _ORDER_PATTERN: "takes the digits of axes, such as 0123, or random",
    SITES_PATTERN: "takes gradient, ascent, perturbation and sent, with commas between them",
}

# What may change when a run goes on: its length, whom it waits for, where it is computed, what it leaves.
MAY_CHANGE = {
    *("run-name", "resume", "rounds", "min-nodes", "min-replies", "round-timeout", "wait-timeout"),
    *("max-failed-rounds", "device", "threads", "keep-checkpoints", "tensorboard"),
}


class Checked(BaseModel):
    """Flat keys in kebab-case, each with its range. A subclass says which ones."""

    model_config = ConfigDict(
        alias_generator=kebab,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        strict=True,
        frozen=True,
    )

    hint: ClassVar[str] = "'specfed config' lists all keys."

    @classmethod
    def read(cls, values: Mapping[str, Value], source: str) -> Self:
        """Check a flat mapping of kebab-case keys that came from ``source``.

        Raises ConfigError with one sentence: an unknown key comes with the nearest known one, a bad
        value with what the key takes and what it got.
        """
        known = set(map(kebab, cls.model_fields))
        for key in values:
            if key not in known:
                raise ConfigError(f'unknown key "{key}" in {source}. {nearest(key, known) or cls.hint}')
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(_sentence(error, source)) from None

    def as_dict(self) -> dict[str, Value]:
        """All keys in kebab-case, defaults included: what ``read`` takes back."""
        return self.model_dump(by_alias=True)


class RunConfig(Checked):
    """What one run does, for all its nodes. A node's own data is never part of it."""

    run_name: Annotated[str, Field(pattern=_RUN_NAME_PATTERN)] = Field(
        "", description="goes into the run folder's name"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0, description="drives initialisation, sampling of nodes, order of batches and dropout"
    )
    rounds: Count = Field(10, description="rounds of training and aggregation")
    resume: str = Field("", description="id of an earlier run to go on with, from its checkpoint")

    model: str = Field(
        "cnn5",
        description="mlp4, cnn5, resnet20, wrn56-2, resnet18, resnet50, densenet121, vit-tiny, vit-b16, dan, "
        "or module:function",
    )
    head: str = Field("", description="name of the head's weight; empty finds it by its shape")

    algorithm: AlgorithmName = Field("fedavg", description="the nodes' local algorithm")
    prox_mu: NotNegative = Field(0.01, description="FedProx's pull towards the global model")
    dyn_alpha: Positive = Field(0.1, description="FedDyn's and FedSMOO's pull; 0.01 to 0.1")
    scaffold_option: Literal["I", "II"] = Field(
        "II", description="SCAFFOLD's control: I the full gradient, II the mean step"
    )
    mix: Share = Field(0.1, description="FedCM, MoFedSAM, FedVSSAM: share of a node's own gradient in a step")
    warm_start: bool = Field(False, description="FedCM, MoFedSAM: the first round without momentum")
    sam_rho: NotNegative = Field(0.05, description="length of the perturbation in all SAM algorithms")
    sam_adaptive: bool = Field(False, description="ASAM's perturbation in FedSAM, MoFedSAM, FedGAMMA, FedFFT")
    fft_renorm: bool = Field(False, description="FedFFT: restore the perturbation's length after the filter")
    vssam_reuse: bool = Field(False, description="FedVSSAM: look along the last step, one gradient a step")
    vssam_direction: Literal["global", "control"] = Field(
        "global", description="FedVSSAM's direction: the server's momentum, or SCAFFOLD's correction"
    )
    speed_mu: Positive = Field(0.1, description="FedSpeed's pull, 1 / lambda")
    speed_share: Share = Field(1.0, description="FedSpeed: share of the gradient at the perturbation")
    speed_normalise: bool = Field(True, description="FedSpeed: perturbation of fixed length, as released")
    dc_alpha: Positive = Field(0.01, description="FedDC's penalty on drift")
    duals: Literal["all", "participants"] = Field(
        "all", description="FedSpeed, FedDC: whose duals move the model; participants sends twice as much"
    )
    lesam_rule: Literal["fedavg", "scaffold", "feddyn"] = Field(
        "fedavg", description="FedLESAM's step; scaffold is FedLESAM-S, feddyn FedLESAM-D"
    )
    lc_tau: NotNegative = Field(1.0, description="FedLC: strength of the calibration; 0 is none")
    lc_paper_loss: bool = Field(False, description="FedLC: the paper's loss, which has no lower bound")
    ssf_projector: Literal["matrix", "coordinate", "spectral"] = Field(
        "matrix", description="SSF's subspace: of rows or columns, elements, or frequencies"
    )
    ssf_rank: Share = Field(0.25, description="SSF: the subspace's share of each tensor's dimensions")
    ssf_refresh: Count = Field(1, description="SSF: rounds that a subspace is kept")
    uplink: Literal["full", "kept-bins"] = Field(
        "full", description="kept-bins: nodes do not send the bins that filter=fft removes"
    )
    filter: FilterName = Field(
        "fft", description="fft, lap-d, gd, fft-high, random, l2-rescale, row-mean or none"
    )
    filter_ratio: Decay = Field(0.05, description="share of the lowest frequencies that is removed")
    filter_kernel: Annotated[int, Field(ge=0, le=100_001)] = Field(
        0, description="lap-d: elements averaged, odd; 0 follows from the ratio"
    )
    filter_sigma: Annotated[float, Field(ge=0, le=10_000)] = Field(
        0.0, description="gd: width of the Gaussian in elements; 0 follows from the ratio"
    )
    filter_keep_dc: bool = Field(False, description="leave the mean of a filtered tensor as it is")
    filter_order: Annotated[str, Field(pattern=_ORDER_PATTERN)] = Field(
        "0123", description="order of axes in which a tensor is flattened, or random"
    )
    filter_layers: str = Field(
        "auto", description="auto, all, or patterns of tensor names, those after a ! left out"
    )
    filter_sites: Annotated[str, Field(pattern=SITES_PATTERN)] = Field(
        "gradient", description="what is filtered: any of gradient, ascent, perturbation, sent"
    )
    filter_min_ndim: Annotated[int, Field(ge=0, le=8)] = Field(
        1, description="filter tensors of at least so many axes; 2 leaves biases and norms alone"
    )

    local_epochs: Count = Field(1, description="passes over a node's data in a round")
    batch_size: Count = Field(32, description="examples in an optimiser step")
    micro_batches: Count = Field(1, description="pieces a batch is computed in, to save memory")
    learning_rate: Positive = Field(0.05, description="of the local SGD in round 1")
    lr_decay: Share = Field(1.0, description="factor on the learning rate from round to round")
    momentum: Decay = Field(0.0, description="of the local SGD")
    weight_decay: NotNegative = Field(0.0, description="coupled L2 penalty, never filtered")
    clip_norm: NotNegative = Field(0.0, description="limit on a step's gradient norm; 0 is none")
    amp: Literal["off", "bf16", "fp16"] = Field(
        "off", description="mixed precision on the nodes; fp16 scales the loss"
    )
    device: Annotated[str, Field(pattern=DEVICE_PATTERN)] = Field(
        "auto", description="auto, cpu, cuda or cuda:1; a node's own setting wins"
    )
    threads: Annotated[int, Field(ge=0, le=1024)] = Field(
        0, description="CPU threads of a training process; 0 leaves it to PyTorch"
    )

    weighting: WeightingName = Field("spectralfuse", description="how the nodes' updates are weighed")
    contribution: Literal["off", "observe", "weight"] = Field(
        "weight", description="off: no scores; observe: scores are only recorded; weight: they weigh"
    )
    base_weighting: Literal["uniform", "examples"] = Field(
        "uniform", description="the weights while scores are off or only observed"
    )
    score_ema: Decay = Field(0.9, description="memory of the running mean over a node's signals")
    entropy_norm: Literal["trace", "frobenius"] = Field(
        "trace", description="what a spectrum is divided by; frobenius gives no entropy proper"
    )
    entropy_layer: str = Field("", description="weight whose update the entropy reads; empty is the head")
    alignment: Literal["mapped", "raw", "leave-one-out"] = Field(
        "mapped",
        description="cosines mapped to 0..1, raw, or leave-one-out: with the others alone; below 0 is 0",
    )
    kalman_beta: Share = Field(
        0.1, description="how fast trust in a signal follows its ranking; 1 is literal"
    )
    kalman_q: Positive = Field(1e-4, description="variance that a score gains in a round")
    kalman_eps: Positive = Field(1e-3, description="smallest variance of a measurement")
    kalman_p0: Positive = Field(1.0, description="variance of a node's first score")
    personalise: Literal["off", "share", "relative"] = Field(
        "off", description="ShapFed: how much of the server's model a node gets beside its own"
    )
    reward_beta: NotNegative = Field(
        0.0, description="CGSV: nodes get their part of each move, 1 in its paper; 0 is all of it"
    )
    free_rider_z: Negative = Field(-3.5, description="a robust z below it makes a share an outlier")
    free_rider_share: Share = Field(
        0.5, description="and only a share below this part of an equal one is flagged"
    )
    guards: Literal["off", "observe", "weight"] = Field(
        "observe", description="flag noise, copies, replays, empty updates; weight: and leave them out"
    )
    guard_z: NotNegative = Field(
        5.0, description="an update is noise if it agrees with no other by so many standard deviations"
    )
    aggregation: Literal["mean", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median"] = Field(
        "mean", description="how updates become one; only mean and geometric-median use the weights"
    )
    update_clip: NotNegative = Field(
        0.0, description="limit on an update's norm, in medians of the round; 0 is none"
    )
    layer_shrinkage: NotNegative = Field(
        0.0, description="FedLWS's beta, 0.03 in its paper; 0 leaves layers their size"
    )
    server_optimizer: Literal["sgd", "momentum", "adam", "yogi", "adagrad"] = Field(
        "sgd", description="the server's step; the last three take rates around 0.01 to 0.1"
    )
    server_learning_rate: Positive = Field(1.0, description="step along the aggregated update")
    server_momentum: Decay = Field(0.9, description="of momentum, adam and yogi")
    server_beta2: Decay = Field(0.99, description="memory of adam's and yogi's squared updates")
    server_tau: Positive = Field(1e-3, description="added to the root of the squared updates")

    fraction_train: Share = Field(1.0, description="share of the nodes that trains in a round")
    min_nodes: Count = Field(2, description="nodes to wait for before the first round")
    min_replies: Count = Field(1, description="usable replies that a round needs to move the model")
    round_timeout: Positive = Field(600.0, description="seconds until a silent node counts as missing")
    wait_timeout: Positive = Field(120.0, description="seconds to wait for min-nodes")
    max_failed_rounds: Count = Field(
        3, description="rounds in a row that do not move the model and end the run"
    )
    max_examples: Count = Field(100_000_000, description="a larger example count is not believed")

    eval_data: str = Field("", description="the server's own test data; empty leaves it to the nodes")
    proxy_data: str = Field("", description="FedLAW: the server's own training data, to learn weights on")
    diagnostics: Literal["off", "updates", "gradients"] = Field(
        "off", description="drift between nodes in each round's updates, or in gradients they send for it"
    )
    diagnostics_probe: Annotated[int, Field(ge=0, le=1000)] = Field(
        0, description="rows of eval-data on which local models' features are compared; 0 is none"
    )
    keep_checkpoints: Count = Field(2, description="checkpoints that stay in the run folder")
    tensorboard: bool = Field(True, description="write TensorBoard events into the run folder")

    @classmethod
    def saved(cls, file: Path) -> Self:
        """The configuration in the ``config.json`` of a run's folder. Raises ConfigError if it holds none."""
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"configuration {file} cannot be read: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"configuration {file} is not a mapping of keys to values")
        return cls.read(values, str(file))

    def changes(self, before: Self) -> dict[str, tuple[Value, Value]]:
        """The keys that make this another run than ``before``, each with its value there and here."""
        old = before.as_dict()
        return {
            key: (old[key], new)
            for key, new in self.as_dict().items()
            if new != old[key] and key not in MAY_CHANGE
        }

    @property
    def traits(self) -> Algorithm:
        """What the run must know of its algorithm."""
        return ALGORITHMS[self.algorithm](self)

    @property
    def wants_labels(self) -> bool:
        """Whether nodes send how many training rows of each class they have."""
        return WEIGHTINGS[self.weighting].labels and self.contribution != "off"

    @property
    def rows_at_once(self) -> int:
        """As many rows as go through the model at once in training: what a node's memory is known to hold."""
        return max(1, self.batch_size // self.micro_batches)

    @property
    def filter_settings(self) -> FilterSettings:
        """The keys of the gradient filter, as ``common.filters`` takes them."""
        return FilterSettings(
            kind=self.filter,
            ratio=self.filter_ratio,
            kernel=self.filter_kernel,
            sigma=self.filter_sigma,
            keep_dc=self.filter_keep_dc,
            order=self.filter_order,
            layers=self.filter_layers,
            min_ndim=self.filter_min_ndim,
            seed=self.seed,
        )

    @model_validator(mode="after")
    def _filter_can_be_built(self) -> Self:
        try:
            _ = self.filter_settings
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.micro_batches > self.batch_size:
            raise ValueError(f"micro-batches ({self.micro_batches}) exceed batch-size ({self.batch_size})")
        if self.min_replies > self.min_nodes:
            raise ValueError(f"min-replies ({self.min_replies}) exceeds min-nodes ({self.min_nodes})")
        if self.momentum and self.traits.reads_steps:
            raise ValueError(
                f"momentum ({self.momentum}) takes an algorithm that does not read steps off updates; "
                f"got {self.algorithm}"
            )
        if self.traits.own_step and (self.server_optimizer, self.server_learning_rate) != ("sgd", 1.0):
            raise ValueError(
                f"{self.algorithm} takes server-optimizer=sgd and server-learning-rate=1; "
                f"got {self.server_optimizer} and {self.server_learning_rate}"
            )
        if self.traits.keeps_state and (self.aggregation != "mean" or self.update_clip):
            raise ValueError(
                "update-clip and robust kinds of aggregation take an algorithm without state on the server, "
                f"which is made of all updates as they are; got {self.algorithm}"
            )
        if "sent" in self.sites and self.traits.exact:
            raise ValueError(
                "filter-sites=sent takes an algorithm without memory of its own updates, such as fedavg; "
                f"got {self.algorithm}"
            )
        if self.uplink == "kept-bins":
            self._low_bins_stay()
        self._only_with("shapfed", "personalise", self.personalise, "off")
        self._only_with("cgsv", "reward-beta", self.reward_beta, 0)
        if WEIGHTINGS[self.weighting].proxy != bool(self.proxy_data):
            raise ValueError(
                f'weighting=fedlaw and proxy-data go together; got {self.weighting} and "{self.proxy_data}"'
            )
        if self.diagnostics_probe and (self.diagnostics == "off" or not self.eval_data):
            raise ValueError(
                f"diagnostics-probe ({self.diagnostics_probe}) takes eval-data, and diagnostics=updates or "
                f'gradients; got "{self.eval_data}" and {self.diagnostics}'
            )
        if 0 < self.diagnostics_probe < FEWEST_PROBES:
            raise ValueError(
                f"diagnostics-probe takes 0 or at least {FEWEST_PROBES} rows; got {self.diagnostics_probe}"
            )
        return self

    @property
    def sites(self) -> tuple[str, ...]:
        """The filter sites, one by one."""
        return tuple(self.filter_sites.split(","))

    def _low_bins_stay(self) -> None:
        """Refuse settings with which an update may have low bins."""
        got = (self.filter, "gradient" in self.sites, self.weight_decay == 0, not self.traits.subspace)
        if self.filter_keep_dc or self.filter_order != NATURAL:
            raise ValueError(
                "uplink=kept-bins takes filter-keep-dc=false and filter-order=0123; got "
                f"{str(self.filter_keep_dc).lower()} and {self.filter_order}"
            )
        if got != ("fft", True, True, True):
            raise ValueError(
                "uplink=kept-bins takes filter=fft on site gradient, weight-decay=0 and not ssf; got "
                f"{self.filter} on {self.filter_sites}, {self.weight_decay} and {self.algorithm}"
            )

    def _only_with(self, weighting: str, key: str, value: Value, off: Value) -> None:
        """Refuse a ``key`` that is not ``off`` unless this weighting's scores weigh."""
        if value != off and (self.weighting, self.contribution) != (weighting, "weight"):
            raise ValueError(
                f"{key} ({value}) takes weighting={weighting} and contribution=weight; "
                f"got {self.weighting} and {self.contribution}"
            )


class NodeConfig(Checked):
    """What a site says of itself. It stays on the site; a run cannot change it."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)] = Field(
        description="the site's stable name, under which its contribution is kept"
    )
    data: Annotated[str, Field(min_length=1)] = Field(description="the site's own data")
    rows: str = Field("", description="a .npy file with the numbers of the rows to use; empty uses all")
    validation: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.1, description="share of the rows kept apart to test models on"
    )
    device: Annotated[str, Field(pattern=_OWN_DEVICE_PATTERN)] = Field(
        "", description="auto, cpu, cuda or cuda:1; empty leaves it to the run"
    )
    threads: Annotated[int, Field(ge=0, le=1024)] = Field(
        0, description="CPU threads of a training process; 0 leaves it to the run"
    )
    state: str = Field(
        "", description="folder for what algorithms remember between rounds; empty keeps it in the SuperNode"
    )
    policy: str = Field("", description="the site's policy file; empty allows everything")


def _sentence(error: ValidationError, source: str) -> str:
    first: Any = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return f"{message}, in {source}"
    key, got = first["loc"][0], first["input"]
    if first["type"] == "missing":
        return f'"{key}" is missing in {source}'
    context = first.get("ctx", {})
    message = IN_WORDS.get(context.get("pattern"), message)
    known = re.findall(r"'([^']+)'", context.get("expected", ""))
    hint = f" {nearest(str(got), known)}".rstrip()
    return f'"{key}" in {source}: {message[0].lower()}{message[1:]}; got {got!r}.{hint}'
