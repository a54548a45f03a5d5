"""How one data set becomes the private data of several nodes, when a federation is simulated."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from common.datasets import Rows
from common.errors import ConfigError, DataError, nearest
from common.seeding import stream, torch_seed

_MIN_ROWS = 10  # that a Dirichlet split gives each node, where the data suffices


def split(labels: Rows, kind: str, nodes: int, alpha: float, seed: int) -> list[Rows]:
    """The row numbers of each of ``nodes`` nodes, sorted; together they are all rows, each once.

    ``iid`` deals shuffled rows into shares that differ by at most one. ``dirichlet`` divides every class
    by proportions drawn from a symmetric Dirichlet distribution: the smaller ``alpha``, the more the
    nodes differ in classes and size (Hsu et al., 2019); ``iid`` ignores it. The same arguments give the
    same split everywhere. Raises ConfigError for a kind or alpha that is none, and DataError for labels that
    cannot be split so.
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
    import datasets

    order = stream(seed, "partition", "order").permutation(len(labels))
    partitioner = _PARTITIONERS[kind](labels, nodes, alpha, seed)
    partitioner.dataset = datasets.Dataset.from_dict({"label": labels[order], "row": order})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it announces each new draw
            parts = [partitioner.load_partition(node) for node in range(nodes)]
    except ValueError as error:
        raise DataError(
            f"a {kind} partition with alpha {alpha} of {len(labels)} rows left one of {nodes} nodes with too "
            "few rows in every draw; take a larger alpha or fewer nodes"
        ) from error
    return [np.sort(np.asarray(part["row"][:], dtype=np.int64)) for part in parts]


def _iid(labels: Rows, nodes: int, alpha: float, seed: int) -> Any:
    from flwr_datasets.partitioner import IidPartitioner

    return IidPartitioner(nodes)


def _dirichlet(labels: Rows, nodes: int, alpha: float, seed: int) -> Any:
    from flwr_datasets.partitioner import DirichletPartitioner

    return DirichletPartitioner(
        num_partitions=nodes,
        partition_by="label",
        alpha=float(alpha),
        min_partition_size=max(1, min(_MIN_ROWS, len(labels) // (4 * nodes))),
        self_balancing=False,
        seed=torch_seed(seed, "partition", "dirichlet"),
    )


_PARTITIONERS: dict[str, Callable[[Rows, int, float, int], Any]] = {"iid": _iid, "dirichlet": _dirichlet}


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
