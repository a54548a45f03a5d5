"""Contribution weighting in somebody else's Flower app: strategies to put where FedAvg stood.

    from strategies.drop_in import SpectralFuse

    strategy = SpectralFuse(head="fc2.weight")
    result = strategy.start(grid, initial_arrays, num_rounds=10)

The ClientApp stays as it is: it gets an ArrayRecord and a ConfigRecord and replies with the whole trained
model in one ArrayRecord and its numbers in one MetricRecord, as in Flower's quickstarts. The update that is
scored is the reply minus what was sent. Arguments called as FedAvg's mean the same, but for these points:

- waiting for nodes ends after ``wait_timeout`` seconds; the round then goes on with those that are there;
- the same seed and nodes give the same samples, and a fraction is rounded up;
- one bad reply is quarantined with a reason in the log and in ``scores``, and the round goes on;
- the example count must be a whole number from 1 on.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import final

import numpy as np
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from common.config import RunConfig
from common.errors import ModelError, nearest
from common.ledger import Flag, Status
from common.messages import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
    RecordDict,
    as_flower,
    unpack,
)
from common.models import Head
from common.params import Arrays
from strategies import presets
from strategies.admission import Inadmissible, Said
from strategies.flower import Cohort, PollingGrid, RecipeStrategy, RoundResult, StrategyState, Wire
from strategies.recipe import Recipe

log = logging.getLogger("flwr")

Array = NDArray[np.generic]

PAUSE = 0.5  # seconds between two looks at the list of nodes
COUNT = "num-examples"  # under which name admission reads the count


@dataclass(frozen=True)
class Contribution:
    """One node in the latest round. ``None``: there is no such number for it."""

    status: Status
    reason: str = ""  # why its reply was not used
    weight: float | None = None  # of its update in the new model
    score: float | None = None
    score_std: float | None = None
    signals: Mapping[str, float] = field(default_factory=dict)
    flags: tuple[Flag, ...] = ()


@final
class DropIn(Strategy):
    """Any recipe as a strategy for an app of the user's own.

    ``head`` is the name of the classifier's weight, one row a class; with ``num_classes`` instead, it is the
    last array of two or more axes with so many rows. ``buffers`` are names or patterns (``*.running_mean``)
    of float arrays that are no parameters: they are averaged and kept out of the scores. Arrays of whole
    numbers are buffers anyway; of those the largest value is kept.

    After each round ``scores`` holds a Contribution for each node that was asked, by the name under which
    the SuperLink knows it, or by its node id as a text where it knows none. Such an id, and with it the
    node's score, lasts until the node restarts; register the nodes' keys for scores that last longer.

    Raises ModelError when the head or a buffer is not in the model, RunFailed after ``max_failed_rounds``
    rounds in a row that did not move the model: they had fewer than ``min_replies`` usable replies, or such
    as add up to no finite model. Each call of ``start`` begins without memory.
    """

    def __init__(
        self,
        recipe: Recipe,
        head: str = "",
        num_classes: int = 0,
        buffers: Sequence[str] = (),
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        min_replies: int = 1,
        max_failed_rounds: int = 3,
        wait_timeout: float = 120.0,
        seed: int = 0,
    ) -> None:
        self.recipe, self.head, self.num_classes, self.buffers = recipe, head, num_classes, tuple(buffers)
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self.min_available_nodes, self.wait_timeout = min_available_nodes, wait_timeout
        self.train = Cohort(
            seed, fraction_train, min_train_nodes, min_replies, max_failed_rounds=max_failed_rounds
        )
        self.evaluate = Cohort(seed, fraction_evaluate, min_evaluate_nodes)
        self.scores: dict[str, Contribution] = {}
        self._timeout = 3600.0  # Flower's own
        self._sent = ArrayRecord()
        self._config = ConfigRecord()
        self._buffer_names: frozenset[str] = frozenset()
        self._inner: RecipeStrategy | None = None  # from the first round on

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """All rounds, as Flower's own ``start``. A node that is silent for ``timeout`` seconds is missing."""
        self._timeout, self.scores = timeout, {}
        self._inner = self._fresh(unpack(initial_arrays))
        polling = PollingGrid(grid).as_grid()
        return super().start(
            polling, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )

    def summary(self) -> None:
        """Log what the strategy is made of."""
        signals = ", ".join(self.recipe.signals) or "none"
        log.info("\tsignals: %s; participation: %s", signals, self.train.fraction)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message with the whole model to each node of the round's cohort; none for a fraction of 0."""
        if self.train.fraction == 0:
            return []
        self._sent, self._config = arrays, config
        model = unpack(arrays)
        inner = self._inner = self._inner or self._fresh(model)
        parameters, buffers = self._split(model)
        self._buffer_names = frozenset(buffers)
        inner.state = replace(inner.state, buffers=buffers)
        return inner.configure_train(server_round, as_flower(parameters), config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next model and the mean of the nodes' own numbers, weighted by their example counts.

        Neither if nobody was to train.
        """
        if self.train.fraction == 0:
            return None, None
        if self._inner is None:
            raise ValueError("aggregate_train comes after configure_train")
        parameters, _ = self._inner.aggregate_train(server_round, replies)
        result = self._inner.last
        if result is not None:
            self.scores = _table(result)
            _log_table(result, self.scores)
        self._inner.check_quorum()
        if parameters is None or result is None:
            return None, None
        new = unpack(parameters) | self._inner.state.buffers
        said = [(reply.metrics, reply.examples) for reply in result.accepted]
        return as_flower({name: new[name] for name in self._sent}), self._mean(said)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message with the model to each node of the evaluation's cohort; none for a fraction of 0."""
        if self.evaluate.fraction == 0:
            return []
        nodes = self._present(grid, server_round, self.evaluate)
        content = self._ask(arrays, ConfigRecord({**config, "server-round": server_round}))
        names = self.evaluate.sample(list(nodes), server_round)
        return [Message(content, nodes[name], "evaluate", ttl=self._timeout) for name in names]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The mean of the nodes' numbers, weighted by their example counts. Replies without are left out."""
        said = [_numbers(reply.content) for reply in replies if reply.has_content()]
        return self._mean([(numbers, numbers.get(self.weighted_by_key, 0.0)) for numbers in said])

    def _fresh(self, model: Arrays) -> RecipeStrategy:
        """The strategy that does the work, for models like this one."""
        for pattern in self.buffers:
            if not any(fnmatchcase(name, pattern) for name in model):
                raise ModelError(
                    f'buffers: no array is called "{pattern}". {nearest(pattern, model)}'.rstrip()
                )
        parameters, buffers = self._split(model)
        return RecipeStrategy(
            self.recipe,
            find_head(parameters, self.head, self.num_classes),
            replace(self.train, timeout=self._timeout),
            partial(self._present, cohort=self.train),
            lambda number: ConfigRecord({**self._config, "server-round": number}),
            StrategyState(buffers),
            wire=Wire(lambda sent: self._ask(self._whole(sent.arrays), sent.order), self._read, as_flower),
        )

    def _split(self, model: Arrays) -> tuple[Arrays, Arrays]:
        """Parameters and buffers."""
        buffers = {
            name: x
            for name, x in model.items()
            if x.dtype.kind != "f" or any(fnmatchcase(name, pattern) for pattern in self.buffers)
        }
        return {name: x for name, x in model.items() if name not in buffers}, buffers

    def _present(self, grid: Grid, round_: int, cohort: Cohort) -> dict[str, int]:
        """The nodes that are online, name -> node id, after a wait of bounded length for enough of them."""
        deadline = time.monotonic() + self.wait_timeout
        enough = max(self.min_available_nodes, cohort.min_clients)
        while len(nodes := named_nodes(grid)) < enough:
            if time.monotonic() >= deadline:
                log.warning("%d of %d nodes were there within %g s", len(nodes), enough, self.wait_timeout)
                break
            time.sleep(PAUSE)
        return nodes

    def _whole(self, parameters: ArrayRecord) -> ArrayRecord:
        """The model that was to be sent, in its order, with these parameters."""
        return ArrayRecord({name: parameters.get(name, x) for name, x in self._sent.items()})

    def _ask(self, arrays: ArrayRecord, order: ConfigRecord) -> RecordDict:
        return RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: order})

    def _read(self, content: RecordDict, model: Arrays) -> Said:
        """The reply's update, buffers and metrics; what does not fit the model is left for admission."""
        arrays, metrics = list(content.array_records.values()), list(content.metric_records.values())
        if len(arrays) != 1 or len(metrics) != 1:
            raise Inadmissible(
                f"the reply has {len(arrays)} array records and {len(metrics)} metric records; "
                "it takes one of each"
            )
        whole = unpack(arrays[0])
        buffers = {name: x for name, x in whole.items() if name in self._buffer_names}
        update = {name: _difference(x, model.get(name)) for name, x in whole.items() if name not in buffers}
        return Said(update, buffers, {**metrics[0], COUNT: metrics[0].get(self.weighted_by_key)})

    def _mean(self, said: Sequence[tuple[Mapping[str, float], float]]) -> MetricRecord | None:
        """The weighted mean of the finite numbers that all have in common; None if nobody said any.

        Who weighs nothing, or more than is believed, is left out. The order of ``said`` changes nothing.
        """
        weighed = [(numbers, weight) for numbers, weight in said if 0 < weight <= self.evaluate.max_examples]
        if not weighed:
            return None
        total = math.fsum(weight for _, weight in weighed)
        finite = [{k for k, v in numbers.items() if math.isfinite(v)} for numbers, _ in weighed]
        common = sorted(set.intersection(*finite) - {self.weighted_by_key, COUNT})
        parts = {k: sorted(numbers[k] * (weight / total) for numbers, weight in weighed) for k in common}
        return MetricRecord({k: sum(values) for k, values in parts.items()})


from_recipe = DropIn
SpectralFed = partial(DropIn, presets.build(RunConfig.model_validate({"weighting": "spectralfed"})))
SpectralFuse = partial(DropIn, presets.build(RunConfig.model_validate({"weighting": "spectralfuse"})))


def find_head(parameters: Arrays, name: str, classes: int) -> Head:
    """The head by the name of its weight, or else the last array of two or more axes with ``classes`` rows.

    Raises ModelError, with the arrays that could be meant, if there is none.
    """
    matrices = {key: x.shape for key, x in parameters.items() if x.ndim >= 2}
    listed = ", ".join(f'"{key}" {shape}' for key, shape in list(matrices.items())[-12:])
    if name and name not in matrices:
        hint = nearest(name, matrices) or f"There are {listed}"
        raise ModelError(f'head "{name}" is no float array of two or more axes. {hint}')
    fitting = [key for key, shape in matrices.items() if shape[0] == classes]
    if not (name or fitting):
        raise ModelError(
            f"no head found: give its weight's name as head, or num_classes (got {classes}); "
            f"there are {listed}"
        )
    weight = name or fitting[-1]
    bias = f"{weight.removesuffix('weight')}bias"
    rows = matrices[weight][0]
    has_bias = weight.endswith("weight") and bias in parameters and parameters[bias].shape == (rows,)
    return Head(weight, bias if has_bias else None, matrices[weight])


def named_nodes(grid: Grid) -> dict[str, int]:
    """The nodes that are online by the SuperLink's names for them, by id where it has none or several."""
    nodes = list(grid.get_nodes())
    uses = Counter(node.name for node in nodes)
    return {
        node.name if node.name and uses[node.name] == 1 else str(node.node_id): node.node_id for node in nodes
    }


def _difference(got: Array, sent: Array | None) -> Array:
    """The update; an array that cannot be one is handed on as it is, and admission says what is wrong."""
    if sent is None or got.shape != sent.shape or got.dtype != sent.dtype:
        return got
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.subtract(got, sent))


def _numbers(content: RecordDict) -> dict[str, float]:
    """What a node says of itself in its one MetricRecord; lists are left out."""
    records = list(content.metric_records.values())
    if len(records) != 1:
        return {}
    return {name: float(v) for name, v in records[0].items() if isinstance(v, int | float)}


def _table(result: RoundResult) -> dict[str, Contribution]:
    position = {reply.client: i for i, reply in enumerate(result.accepted)}
    table = {}
    for verdict in result.verdicts:
        row = Contribution(verdict.status, verdict.reason)
        if result.outcome is not None and verdict.reply is not None:
            found, i = result.outcome, position[verdict.client]
            row = replace(
                row,
                weight=float(found.weights[i]),
                score=None if found.scores is None else float(found.scores.values[i]),
                score_std=None
                if found.scores is None or found.scores.std is None
                else float(found.scores.std[i]),
                signals={name: float(values[i]) for name, values in found.signals.items()},
                flags=result.flags.get(verdict.client, ()),
            )
        table[verdict.client] = row
    return table


def _log_table(result: RoundResult, table: Mapping[str, Contribution]) -> None:
    if result.reason:
        log.info("round %d: %s", result.number, result.reason)
    for client, row in table.items():
        if row.status != "accepted":
            log.warning("round %d, %s: %s. %s", result.number, client, row.status, row.reason)
        elif row.weight is not None:
            signals = ", ".join(f"{name} {value:.3f}" for name, value in row.signals.items())
            log.info("round %d, %s: weight %.3f (%s)", result.number, client, row.weight, signals)
        for flag in row.flags:
            log.warning("round %d, %s: %s", result.number, client, flag.text)
