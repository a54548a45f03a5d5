"""How one data set becomes the private data of several nodes, when a federation is simulated."""

import re
import warnings
from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np

from common.datasets import Rows
from common.errors import ConfigError, DataError, nearest
from common.seeding import stream, torch_seed

_MIN_ROWS = 10  # that a Dirichlet split gives each node, where the data suffices


def split(labels: Rows, kind: str, nodes: int, alpha: float, seed: int) -> list[Rows]:
    """The row numbers of each of ``nodes`` nodes, sorted; together they are all rows, each once.

    =======================  =========================================================================
    ``iid``                  shares of shuffled rows that differ by at most one
    ``dirichlet``            every class is divided by proportions drawn from a symmetric Dirichlet
                             distribution: the smaller ``alpha``, the more the nodes differ in classes
                             and size (Hsu et al., 2019)
    ``shards``               shares of like size with about two classes each: rows sorted by class are cut
                             into twice as many shards as nodes, of which each gets two (McMahan et al.,
                             2017)
    ``only-label-skew``      shares of one size; node i of n draws evenly from C i / n of the C classes,
                             rounded up, those of which most rows are left; the last ones get what is left
    ``step-quantity-skew``   shuffled rows, of which node i gets a share proportional to i
    ``step-label-skew``      node i of n has the first C i / n of the C classes in an order drawn by lot,
                             rounded up; a class is divided evenly among those that have it
    =======================  =========================================================================

    The last three are splits of the SpectralFuse paper as we read its one line on each. ``alpha`` is of
    ``dirichlet`` alone. The same arguments give the same split everywhere. Raises ConfigError for a kind or
    alpha that is none, and DataError for labels that cannot be split so.
    """
    if kind not in _PARTITIONERS:
        known = ", ".join(_PARTITIONERS)
        raise ConfigError(
            f'unknown partition "{kind}"; takes {known}. {nearest(kind, _PARTITIONERS)}'.rstrip()
        )
    if not 1 <= nodes <= len(labels):
        raise DataError(f"{len(labels)} rows can be split over 1 to {len(labels)} nodes; got {nodes}")
    if not (alpha > 0 and np.isfinite(alpha)):
        raise ConfigError(f"alpha of a partition must be positive and finite; got {alpha}")
    order = stream(seed, "partition", "order").permutation(len(labels))
    try:
        parts = _PARTITIONERS[kind](labels[order], nodes, alpha, seed)
    except ValueError:  # as the library says it
        parts = []
    if not (parts and all(len(part) for part in parts)):
        raise DataError(
            f"a {kind} partition of {len(labels)} rows left one of {nodes} nodes with none; take fewer nodes"
        )
    return [np.sort(order[part]) for part in parts]


def in_words(kind: str, alpha: float) -> str:
    """A split as tables and terminals name it."""
    return f"Dirichlet({alpha:g})" if kind == "dirichlet" else kind


def _iid(labels: Rows, nodes: int, alpha: float, seed: int) -> list[Rows]:
    from flwr_datasets.partitioner import IidPartitioner

    return _from_library(IidPartitioner(nodes), labels, nodes)


def _dirichlet(labels: Rows, nodes: int, alpha: float, seed: int) -> list[Rows]:
    from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(
        num_partitions=nodes,
        partition_by="label",
        alpha=float(alpha),
        min_partition_size=max(1, min(_MIN_ROWS, len(labels) // (4 * nodes))),
        self_balancing=False,
        seed=torch_seed(seed, "partition", "dirichlet"),
    )
    try:
        return _from_library(partitioner, labels, nodes)
    except ValueError as error:
        raise DataError(
            f"a dirichlet partition with alpha {alpha} of {len(labels)} rows left one of {nodes} nodes with "
            "too few rows in every draw; take a larger alpha or fewer nodes"
        ) from error


def _shards(labels: Rows, nodes: int, alpha: float, seed: int) -> list[Rows]:
    """Not the library's, which leaves rows out that do not fill a shard."""
    shards = np.array_split(np.argsort(labels, kind="stable"), 2 * nodes)
    dealt = stream(seed, "partition", "shards").permutation(2 * nodes).reshape(nodes, 2)
    return [np.concatenate([shards[one], shards[other]]) for one, other in dealt]


def _only_label_skew(labels: Rows, nodes: int, alpha: float, seed: int) -> list[Rows]:
    left = {int(label): np.flatnonzero(labels == label) for label in np.unique(labels)}
    draw = stream(seed, "partition", "classes")
    parts = []
    for node, size in enumerate(len(part) for part in np.array_split(labels, nodes)):
        # The order of the draw decides between classes of which as many are left.
        ranked = sorted(draw.permutation([*left]).tolist(), key=lambda label: -len(left[label]))
        count = ceil(len(left) * (node + 1) / nodes)
        while sum(len(left[label]) for label in ranked[:count]) < size:
            count += 1
        taken = []
        # The smallest first: the others make up for what it lacks.
        for place, label in enumerate(reversed(ranked[:count])):
            part, left[label] = np.split(left[label], [size // (count - place)])
            taken.append(part)
            size -= len(part)
        parts.append(np.concatenate(taken))
    return parts


def _step_quantity_skew(labels: Rows, nodes: int, alpha: float, seed: int) -> list[Rows]:
    from flwr_datasets.partitioner import LinearPartitioner

    return _from_library(LinearPartitioner(nodes), labels, nodes)


def _step_label_skew(labels: Rows, nodes: int, alpha: float, seed: int) -> list[Rows]:
    classes = stream(seed, "partition", "classes").permutation(np.unique(labels))
    has = [ceil(len(classes) * node / nodes) for node in range(1, nodes + 1)]
    parts: list[list[Rows]] = [[] for _ in range(nodes)]
    for place, label in enumerate(classes):
        owners = [node for node in range(nodes) if place < has[node]]
        # The rows that are left over go to the last nodes, so that no node has more than a later one.
        pieces = np.array_split(np.flatnonzero(labels == label), len(owners))
        for node, piece in zip(reversed(owners), pieces, strict=True):
            parts[node].append(piece)
    return [np.concatenate(part) for part in parts]


def _from_library(partitioner: Any, labels: Rows, nodes: int) -> list[Rows]:
    import datasets

    rows = np.arange(len(labels))
    partitioner.dataset = datasets.Dataset.from_dict({"label": labels, "row": rows})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it announces each new draw
        parts = [partitioner.load_partition(node) for node in range(nodes)]
    return [np.asarray(part["row"][:], dtype=np.int64) for part in parts]


_PARTITIONERS: dict[str, Callable[[Rows, int, float, int], list[Rows]]] = {
    "iid": _iid,
    "dirichlet": _dirichlet,
    "shards": _shards,
    "only-label-skew": _only_label_skew,
    "step-quantity-skew": _step_quantity_skew,
    "step-label-skew": _step_label_skew,
}
KINDS = tuple(_PARTITIONERS)


def free_rider(rows: Rows, size: int, samples: int, seed: int) -> Rows:
    """A free-rider's ``size`` row numbers: few rows of its share, drawn with replacement, over and over.

    It claims as much data as the others while it holds at most ``samples`` distinct rows.
    """
    if len(rows) == 0 or samples < 1:
        raise ValueError(f"a free-rider repeats at least one row; got {samples} of {len(rows)} rows")
    drawn = stream(seed, "free-rider").choice(rows, samples, replace=True)
    return np.resize(drawn, size)


def parse_part(text: str) -> tuple[int, int]:
    """``"1/3"``, the first of three parts, as (index from 0, count): (0, 3). Raises ConfigError."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise ConfigError(f'a part is written like "1/3", from 1/3 to 3/3; got "{text}"')
    return number - 1, count
