"""What a run begins with, once its nodes are known. Nothing here talks to them or writes a file."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from torch import nn

from common import __version__, filters, models
from common.config import RunConfig
from common.datasets import Examples, fingerprint, load
from common.errors import DataError
from common.ledger import Header, ModelCard, NodeCard
from common.params import Arrays, carried, to_arrays, trainable
from strategies.flower import StrategyState
from strategies.signals.entropy import check_layer


class OwnData(NamedTuple):
    """The server's own labelled data, if it has some."""

    test: Examples | None  # to test models on
    proxy: Examples | None  # to learn weights on


@dataclass(frozen=True)
class Start:
    """A model that fits the nodes' data, and what follows from it."""

    model: nn.Module  # on the CPU
    head: models.Head
    arrays: Arrays  # its first parameters
    state: StrategyState
    filtered: frozenset[str]  # the parameters that the nodes' gradient filter changes
    input_shape: tuple[int, ...]
    classes: int


def own_data(config: RunConfig) -> OwnData:
    """The server's own data. Raises DataError if they cannot be read."""
    test = load(config.eval_data, "test") if config.eval_data else None
    return OwnData(test, load(config.proxy_data, "train") if config.proxy_data else None)


def begin(config: RunConfig, nodes: NodeCard) -> Start:
    """The start of a new run whose nodes' data are like those of ``nodes``.

    Raises ModelError or ConfigError if the model does not fit them, or the configuration the model.
    """
    shape, classes = nodes.input_shape, nodes.classes
    model = models.build(config.model, shape, classes, config.seed)
    head = models.resolve_head(model, classes, config.head)
    models.require_logits(model, shape, classes)
    arrays = to_arrays(trainable(model))
    filtered = frozenset(filters.filtered_names(config.filter_settings, model))
    if config.entropy_layer:
        check_layer(config.entropy_layer, arrays)
    return Start(model, head, arrays, StrategyState(to_arrays(carried(model))), filtered, shape, classes)


def header(config: RunConfig, folder: Path, start: Start, cards: Sequence[NodeCard], own: OwnData) -> Header:
    """The ledger's first line."""
    return Header(
        run_id=folder.name,
        folder=str(folder),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        config=config.as_dict(),
        versions=_versions(),
        model=ModelCard(
            name=config.model,
            parameters=models.count_parameters(start.model),
            tensors=len(start.arrays),
            filtered_tensors=len(start.filtered),
            head=start.head.weight,
            head_shape=start.head.shape,
        ),
        nodes=tuple(cards),
        eval_fingerprint="" if own.test is None else fingerprint(own.test),
        proxy_fingerprint="" if own.proxy is None else fingerprint(own.proxy),
    )


def require_fitting(config: RunConfig, cards: Sequence[NodeCard], own: OwnData) -> None:
    """Raise DataError if the server's own data are not of the nodes' kind."""
    nodes = cards[0]
    naming = next((card.naming for card in cards if card.naming), "")
    for key, examples in {"eval-data": own.test, "proxy-data": own.proxy}.items():
        if examples is None:
            continue
        named = f"{key} {config.as_dict()[key]}"
        if (examples.classes, examples.input_shape) != (nodes.classes, nodes.input_shape):
            raise DataError(
                f"{named} has {examples.classes} classes and inputs of {examples.input_shape}; "
                f"the nodes have {nodes.classes} and {nodes.input_shape}"
            )
        if naming and examples.naming not in ("", naming):
            raise DataError(f"{named} does not name its classes or columns as the nodes do")


def _versions() -> dict[str, str]:
    ours = {"specfed": __version__, "python": platform.python_version()}
    return {**ours, **{name: version(name) for name in ("flwr", "torch", "numpy")}}
