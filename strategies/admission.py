"""The gate in front of all arithmetic: is this reply what the server asked for?

A reply is compared with the server's own schema. What does not fit is quarantined with a reason that an
operator can act on; nothing is repaired, cast or guessed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from common.params import Arrays
from strategies.round import Reply

Signature = tuple[tuple[int, ...], str]  # shape and dtype


@dataclass(frozen=True)
class Schema:
    """What a reply must hold."""

    update: Mapping[str, Signature]
    buffers: Mapping[str, Signature]
    max_examples: int

    @classmethod
    def of(cls, model: Arrays, buffers: Arrays, max_examples: int) -> Self:
        """The schema of replies to a broadcast of these arrays."""
        return cls(_signatures(model), _signatures(buffers), max_examples)


class Inadmissible(ValueError):
    """Why a reply cannot be used, in one sentence."""


def admit(
    client: str, update: Arrays, buffers: Arrays, metrics: Mapping[str, object], schema: Schema
) -> Reply:
    """A reply that fits the schema, holds finite numbers only and gives a believable example count.

    Raises Inadmissible with the first thing that is wrong.
    """
    _check_arrays("update", update, schema.update)
    _check_arrays("buffers", buffers, schema.buffers)
    examples = metrics.get("num-examples")
    if not isinstance(examples, int) or isinstance(examples, bool):
        raise Inadmissible(f"num-examples is {examples!r}; it takes a whole number")
    if not 0 < examples <= schema.max_examples:
        raise Inadmissible(f"num-examples is {examples}; it takes 1 to {schema.max_examples}")
    said = {name: float(v) for name, v in metrics.items() if isinstance(v, int | float)}
    return Reply(client, update, buffers, examples, said)


def _signatures(arrays: Arrays) -> dict[str, Signature]:
    return {name: (tuple(x.shape), x.dtype.str) for name, x in arrays.items()}


def _check_arrays(what: str, arrays: Arrays, expected: Mapping[str, Signature]) -> None:
    missing, extra = sorted(expected.keys() - arrays.keys()), sorted(arrays.keys() - expected.keys())
    if missing:
        raise Inadmissible(f'{what} lacks "{missing[0]}"{_and_more(missing)}')
    if extra:
        raise Inadmissible(f'{what} has "{extra[0]}", which the model has not{_and_more(extra)}')
    for name, (shape, dtype) in expected.items():
        x = arrays[name]
        if tuple(x.shape) != shape:
            raise Inadmissible(f'{what} "{name}" has shape {tuple(x.shape)}; it takes {shape}')
        if x.dtype.str != dtype:
            raise Inadmissible(f'{what} "{name}" is {x.dtype}; it takes {np.dtype(dtype)}')
        if x.dtype.kind == "f" and not _finite(x):
            raise Inadmissible(f'{what} "{name}" holds NaN or infinity')


def _finite(x: np.ndarray) -> bool:
    # A finite sum proves that all are finite and needs no array of booleans; only a sum that overflowed
    # or met a NaN is looked at element by element.
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(float(x.sum())) or bool(np.isfinite(x).all())


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
