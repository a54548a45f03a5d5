"""The Flower ClientApp: decode a message, train or evaluate, encode the reply.

Flower starts a new process for each message, so whatever a message does not need is imported late. A
handler always replies: without a reply the SuperNode would wait for ever.
"""

import logging
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.clientapp import ClientApp

from common.config import NodeConfig, RunConfig
from common.datasets import Examples, Rows, fingerprint, load, split_validation
from common.errors import ConfigError, DataError, SpecfedError
from common.ledger import NodeCard
from common.messages import (
    ARRAYS,
    BUFFERS,
    CARD,
    CONFIG,
    METRICS,
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
from common.seeding import stream, torch_seed

if TYPE_CHECKING:
    import torch
    from torch import nn

log = logging.getLogger("flwr")
app = ClientApp()

Handler = Callable[[Message, Context], Message]


def always_replies(work: Callable[[Message, Context], RecordDict]) -> Handler:
    """A handler that answers every message: with the work's records, or with why there are none."""

    def handler(message: Message, context: Context) -> Message:
        try:
            return Message(work(message, context), reply_to=message)
        except SpecfedError as error:
            log.error("%s", error)
            return refusal(message, error)
        except Exception as error:
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
    card = NodeCard(
        name=node.name,
        examples=len(mine),
        classes=examples.classes,
        input_shape=examples.input_shape,
        fingerprint=fingerprint(mine),
        device=node.device or run.device,
        versions={name: _version(name) for name in ("flwr", "torch", "numpy")},
    )
    return RecordDict({CARD: card_record(card)})


@app.train()
@always_replies
def train(message: Message, context: Context) -> RecordDict:
    """Test the received model on the node's own validation rows, train it, and send the update."""
    from client_app.algorithms import ALGORITHMS
    from client_app.algorithms.filtered import Filtered
    from client_app.training import LocalSettings
    from client_app.training import train as train_locally
    from common import filters
    from common.evaluation import evaluate as evaluate_on
    from common.params import carried, to_arrays

    started = time.monotonic()
    node, run = _configs(context)
    order = message.content.config_records[CONFIG]
    round_ = _integer(order["round"])
    examples, train_rows, validation_rows = _own_data(node)
    model, device = _received_model(message, node, run)
    mine = examples.rows(train_rows)
    metrics: dict[str, int | float | list[int]] = {"num-examples": len(mine)}
    if run.wants_labels:  # otherwise a node keeps to itself what its data hold
        counts = np.bincount(mine.y, minlength=_integer(order["classes"]))
        metrics["label-counts"] = [int(n) for n in counts]
    if len(validation_rows):
        before = evaluate_on(model, examples.rows(validation_rows), device)
        metrics |= {"loss-before": before.loss, "accuracy-before": before.accuracy}
        metrics["validation-examples"] = before.examples
    gradient_filter = filters.build(run.filter_settings, model)
    trained = train_locally(
        model,
        mine,
        Filtered(ALGORITHMS[run.algorithm](run), gradient_filter),
        LocalSettings(
            lr=float(str(order["learning-rate"])),
            epochs=run.local_epochs,
            batch_size=run.batch_size,
            micro_batches=run.micro_batches,
            momentum=run.momentum,
            weight_decay=run.weight_decay,
            clip_norm=run.clip_norm,
            bf16=run.amp == "bf16",
        ),
        device,
        stream(run.seed, "batches", round_, node.name),
        torch_seed(run.seed, "noise", round_, node.name),
    )
    metrics |= {"steps": trained.steps, "train-loss": trained.loss, "seconds": time.monotonic() - started}
    return RecordDict(
        {
            UPDATE: pack(to_arrays(trained.update)),
            BUFFERS: pack(to_arrays(carried(model))),
            METRICS: MetricRecord({**metrics}),
        }
    )


@app.evaluate()
@always_replies
def evaluate(message: Message, context: Context) -> RecordDict:
    """Test the received model on the node's own validation rows."""
    from common.evaluation import evaluate as evaluate_on

    node, run = _configs(context)
    examples, _, validation_rows = _own_data(node)
    if len(validation_rows) == 0:
        raise DataError(f'node "{node.name}" keeps no rows to test on: its "validation" is {node.validation}')
    model, device = _received_model(message, node, run)
    result = evaluate_on(model, examples.rows(validation_rows), device)
    metrics = {"num-examples": result.examples, "loss": result.loss, "accuracy": result.accuracy}
    return RecordDict({METRICS: MetricRecord({**metrics})})


def _configs(context: Context) -> tuple[NodeConfig, RunConfig]:
    if "data" not in context.node_config:
        raise DataError("this node has no data: start it with specfed node --data ... --name ...")
    node = NodeConfig.read(context.node_config, "the node's configuration")
    return node, RunConfig.read(context.run_config, "the run configuration")


def _own_data(node: NodeConfig) -> tuple[Examples, Rows, Rows]:
    """All of the source's training examples, and the numbers of this node's training and test rows."""
    examples = load(node.data, "train")
    rows = _row_numbers(node.rows, len(examples)) if node.rows else np.arange(len(examples))
    # Not the run's seed: the rows a site trains on stay the same whatever runs come by.
    train_rows, validation_rows = split_validation(rows, node.validation, seed=0)
    return examples, train_rows, validation_rows


def _row_numbers(file: str, available: int) -> Rows:
    try:
        rows = np.load(Path(file), allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"no row numbers in {file}: {error}") from None
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or len(rows) == 0:
        found = f"{rows.dtype} of shape {rows.shape}"
        raise DataError(f"{file} holds {found}; it takes row numbers, at least one")
    if rows.min() < 0 or rows.max() >= available:
        raise DataError(f"{file} names row {int(rows.max())}, but the data have {available} rows")
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
    content = message.content
    order = content.config_records[CONFIG]
    shape = order["input-shape"]
    assert isinstance(shape, list)
    model = models.build(run.model, tuple(int(s) for s in shape), _integer(order["classes"]), run.seed)
    load_into(trainable(model), unpack(content.array_records[ARRAYS]))
    load_into(carried(model), unpack(content.array_records[BUFFERS]))
    device = resolve(node.device or run.device)
    return model.to(device), device


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise ConfigError(f"the server sent {value!r} where a whole number belongs")
    return value


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
