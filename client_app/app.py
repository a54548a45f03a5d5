"""The Flower ClientApp: decode a message, train or evaluate, encode the reply.

Flower starts a new process for each message, so whatever a message does not need is imported late. A
handler always replies: without a reply the SuperNode would wait for ever.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.clientapp import ClientApp

from common.config import NodeConfig, RunConfig
from common.datasets import Examples, Rows, fingerprint, load, split_validation
from common.errors import ConfigError, DataError, PolicyError, SpecfedError
from common.ledger import NodeCard
from common.messages import (
    ACCEPTED,
    ARRAYS,
    BUFFERS,
    CARD,
    CONFIG,
    ERA,
    LEARNING_RATE,
    MEMORY_LOST,
    METRICS,
    REASON,
    REPORT,
    RUN,
    SLOT,
    UPDATE,
    Context,
    Message,
    MetricRecord,
    RecordDict,
    card_record,
    pack,
    refusal,
    unpack,
)
from common.policy import Policy, read_policy
from common.seeding import stream, torch_seed
from common.slots import GRADIENT
from common.text import one_line

if TYPE_CHECKING:
    import torch
    from torch import nn

    from client_app.algorithms.rule import Algorithm, Slots
    from client_app.job import LocalSettings
    from client_app.memory import NamedSlots, Store
    from common.traffic import Traffic

log = logging.getLogger("flwr")
app = ClientApp()

Metrics = dict[str, int | float | list[int] | list[float]]
Handler = Callable[[Message, Context], Message]


def always_replies(work: Callable[[Message, Context], RecordDict]) -> Handler:
    """A handler that answers every message: with the work's records, or with why there are none."""

    def handler(message: Message, context: Context) -> Message:
        try:
            return Message(work(message, context), reply_to=message)
        except SpecfedError as error:
            log.error("%s", error)
            return refusal(message, error)
        except (Exception, SystemExit) as error:  # a model's module may call sys.exit
            log.exception("unexpected error while handling a %s message", message.metadata.message_type)
            return refusal(message, error)

    return handler


@app.query("hello")
@always_replies
def hello(message: Message, context: Context) -> RecordDict:
    """Who this node is and what shape its data have: the first thing a server asks."""
    node, run = _configs(context)
    examples, train_rows, _ = _own_data(node)
    mine = examples.rows(train_rows)
    try:
        _policy(node, run, len(mine))
    except PolicyError as error:  # nobody knows yet whose policy it is
        raise PolicyError(f"{node.name}: {error}") from None
    card = NodeCard(
        name=node.name,
        examples=len(mine),
        classes=examples.classes,
        input_shape=examples.input_shape,
        naming=examples.naming,
        fingerprint=fingerprint(mine),
        device=node.device or run.device,
        versions={name: _version(name) for name in ("flwr", "torch", "numpy")},
    )
    return RecordDict({CARD: card_record(card)})


@app.query("refused")
@always_replies
def refused(message: Message, context: Context) -> RecordDict:
    """Tell this site's operator why a run takes no part of it."""
    reason = one_line(str(message.content.config_records[CONFIG][REASON]))
    log.error("a run turned this node away: %s", reason)
    return RecordDict()


@app.train()
@always_replies
def train(message: Message, context: Context) -> RecordDict:
    """Test the received model on the node's own validation rows, train it, and send the update."""
    from client_app import site
    from client_app.diagnostics import spectrum
    from client_app.memory import Moment, recall
    from client_app.training import train as train_locally
    from common.params import carried, to_arrays

    started = time.monotonic()
    node, run = _configs(context)
    order = message.content.config_records[CONFIG]
    round_ = _integer(order["round"])
    examples, train_rows, validation_rows = _own_data(node)
    mine = examples.rows(train_rows)
    policy = _policy(node, run, len(mine))
    with _said_here_alone(f'node "{node.name}" cannot count the rounds of a run'):
        until = site.count_round(policy, context, node.state, str(order[RUN]))
    until = min(until, time.time() + message.metadata.ttl)  # by then nobody waits; clocks may differ
    model, device = _received_model(message, node, run)
    if policy.noise:
        site.refuse_statistics({n: b for n, b in carried(model).items() if b.is_floating_point()})
    metrics: Metrics = {"num-examples": len(mine)}
    if run.wants_labels:  # otherwise a node keeps to itself what its data hold
        counts = np.bincount(mine.y, minlength=_integer(order["classes"]))
        metrics["label-counts"] = [int(n) for n in counts]
    metrics |= _tested(model, examples.rows(validation_rows), device, run.rows_at_once)
    algorithm, travels = _algorithm(model, device, run, round_)
    store = _store(context, node, str(order[RUN]))
    last, now = Moment(_integer(order[ERA]), _integer(order[ACCEPTED])), Moment(_integer(order[ERA]), round_)
    with _said_here_alone(f'node "{node.name}" cannot read its memory'):
        remembered, lost = recall(store, last) if algorithm.remembers else ({}, False)
    trained = train_locally(
        model,
        mine,
        algorithm,
        _settings(run, float(str(order[LEARNING_RATE]))),
        device,
        stream(run.seed, "batches", round_, node.name),
        torch_seed(run.seed, "noise", round_, node.name),
        _on(device, _received_slots(message, travels)),
        _on(device, remembered),
        run.diagnostics,
        until,
    )
    reports = {**trained.finish.report, **({GRADIENT: trained.start} if trained.start else {})}
    if trained.first:
        metrics |= spectrum(trained.first, algorithm.sites.gradient)
    if algorithm.remembers:
        after = {slot: to_arrays(x) for slot, x in trained.finish.memory.items()}
        with _said_here_alone(f'node "{node.name}" cannot keep its memory'):
            store.save(now, after, keep=last)
        metrics[MEMORY_LOST] = int(lost)
    metrics |= {"steps": trained.steps, "train-loss": trained.loss, "seconds": time.monotonic() - started}
    return RecordDict(
        {
            UPDATE: pack(travels.encode_update(site.clipped(policy, to_arrays(trained.update)))),
            BUFFERS: pack(to_arrays(carried(model))),
            METRICS: _leaving(policy, metrics),
            **{f"{REPORT}{slot}": pack(to_arrays(x)) for slot, x in reports.items()},
        }
    )


@app.evaluate()
@always_replies
def evaluate(message: Message, context: Context) -> RecordDict:
    """Test the received model on the node's own validation rows."""
    from client_app import site
    from common.evaluation import evaluate as evaluate_on

    node, run = _configs(context)
    examples, train_rows, validation_rows = _own_data(node)
    policy = _policy(node, run, len(train_rows))
    with _said_here_alone(f'node "{node.name}" cannot count the tests of a run'):
        site.count_test(policy, context, node.state, str(message.content.config_records[CONFIG][RUN]))
    if len(validation_rows) == 0:
        raise DataError(f'node "{node.name}" keeps no rows to test on: its "validation" is {node.validation}')
    model, device = _received_model(message, node, run)
    result = evaluate_on(model, examples.rows(validation_rows), device, run.rows_at_once)
    metrics: Metrics = {"num-examples": result.examples, "loss": result.loss, "accuracy": result.accuracy}
    return RecordDict({METRICS: _leaving(policy, metrics)})


def _configs(context: Context) -> tuple[NodeConfig, RunConfig]:
    if "data" not in context.node_config:
        raise DataError("this node has no data: start it with specfed node --data ... --name ...")
    node = NodeConfig.read(context.node_config, "the node's configuration")
    return node, RunConfig.read(context.run_config, "the run configuration")


def _own_data(node: NodeConfig) -> tuple[Examples, Rows, Rows]:
    """All of the source's training examples, and the numbers of this node's training and test rows."""
    with _said_here_alone(f'node "{node.name}" cannot use its data'):
        examples = load(node.data, "train")
        rows = _row_numbers(node.rows, len(examples)) if node.rows else np.arange(len(examples))
    # Not the run's seed: the rows a site trains on stay the same whatever runs come by.
    train_rows, validation_rows = split_validation(rows, node.validation, seed=0)
    return examples, train_rows, validation_rows


@contextmanager
def _said_here_alone(what: str) -> Iterator[None]:
    """Errors that may name files, and files may be named after people: only the site reads those."""
    try:
        yield
    except (ConfigError, DataError) as error:
        log.error("%s", error)
        raise DataError(f"{what}; its log says why") from None


def _row_numbers(file: str, available: int) -> Rows:
    try:
        rows = np.load(Path(file), allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"no row numbers in {file}: {error}") from None
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or len(rows) == 0:
        found = f"{rows.dtype} of shape {rows.shape}"
        raise DataError(f"{file} holds {found}; it takes row numbers, at least one")
    wrong = rows[(rows < 0) | (rows >= available)]
    if len(wrong):
        raise DataError(f"{file} names row {wrong[0]}, but the data have {available} rows")
    numbers: Rows = rows.astype(np.int64)
    return numbers


def _received_model(message: Message, node: NodeConfig, run: RunConfig) -> "tuple[nn.Module, torch.device]":
    import torch

    from common import models
    from common.devices import resolve
    from common.params import carried, load_into, trainable

    threads = node.threads or run.threads
    if threads:
        torch.set_num_threads(threads)
    arrays = message.content.array_records  # Flower picks them out anew each time
    order = message.content.config_records[CONFIG]
    model = models.build(run.model, _integers(order["input-shape"]), _integer(order["classes"]), run.seed)
    load_into(trainable(model), unpack(arrays[ARRAYS]))
    load_into(carried(model), unpack(arrays[BUFFERS]))
    device = resolve(node.device or run.device)
    return model.to(device), device


def _policy(node: NodeConfig, run: RunConfig, examples: int) -> Policy:
    """The site's policy, which lets this run in. Raises PolicyError if it does not."""
    with _said_here_alone(f'node "{node.name}" cannot read its policy'):
        policy = read_policy(node.policy)
    policy.check_run(run, run.traits.exact, examples)
    return policy


def _leaving(policy: Policy, metrics: Metrics) -> MetricRecord:
    from client_app import site

    return MetricRecord({name: metrics[name] for name in site.allowed(policy, metrics)})


def _tested(model: "nn.Module", rows: Examples, device: "torch.device", at_once: int) -> Metrics:
    """What the received model is worth on the node's own validation rows; nothing without any."""
    from common.evaluation import evaluate as evaluate_on

    if not len(rows):
        return {}
    before = evaluate_on(model, rows, device, at_once)
    return {
        "loss-before": before.loss,
        "accuracy-before": before.accuracy,
        "validation-examples": before.examples,
    }


def _algorithm(
    model: "nn.Module", device: "torch.device", run: RunConfig, round_: int
) -> "tuple[Algorithm, Traffic]":
    from client_app import algorithms
    from common import filters
    from common.params import trainable
    from common.traffic import traffic

    shapes = {name: tuple(p.shape) for name, p in trainable(model).items()}
    own = run.filter_settings
    travels = traffic(run, shapes, set(filters.filtered_names(own, model)), round_)
    phi = filters.build(own, model)
    # Made when FedFFT asks: to a run without a filter it need not fit the model.
    fft = cache(lambda: filters.build(replace(own, kind="fft"), model))
    tools = algorithms.Tools(phi, lambda x: fft()(x), travels.project_on(device))
    return algorithms.build(run, tools), travels


def _settings(run: RunConfig, learning_rate: float) -> "LocalSettings":
    from client_app.job import LocalSettings

    return LocalSettings(
        lr=learning_rate,
        epochs=run.local_epochs,
        batch_size=run.batch_size,
        micro_batches=run.micro_batches,
        momentum=run.momentum,
        weight_decay=run.weight_decay,
        clip_norm=run.clip_norm,
        amp=run.amp,
    )


def _received_slots(message: Message, travels: "Traffic") -> "NamedSlots":
    return {
        name.removeprefix(SLOT): travels.decode_slot(unpack(record))
        for name, record in message.content.array_records.items()
        if name.startswith(SLOT)
    }


def _store(context: Context, node: NodeConfig, run: str) -> "Store":
    from client_app.memory import ContextStore, DiskStore

    return DiskStore.of(Path(node.state) / "memory", run, node.name) if node.state else ContextStore(context)


def _on(device: "torch.device", slots: "NamedSlots") -> "Slots":
    import torch

    return {
        slot: {name: torch.tensor(x, device=device) for name, x in arrays.items()}
        for slot, arrays in slots.items()
    }


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise ConfigError(f"the server sent {value!r} where a whole number belongs")
    return value


def _integers(value: object) -> tuple[int, ...]:
    return tuple(map(_integer, value if isinstance(value, list) else [value]))


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
