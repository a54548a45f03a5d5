"""The gate in front of all arithmetic: is this reply what the server asked for?

A reply is compared with the server's own schema. What does not fit is quarantined with a reason that an
operator can act on; nothing is repaired, cast or guessed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self, TypeGuard

import numpy as np

from common.params import Arrays, finite
from strategies.round import Reply

VARIANCE = "running_var"  # how torch's norm layers call theirs, at the end of a name

Signature = tuple[tuple[int, ...], str]  # shape and dtype


@dataclass(frozen=True)
class Schema:
    """What a reply must hold."""

    update: Mapping[str, Signature]
    buffers: Mapping[str, Signature]
    max_examples: int
    label_classes: int | None = None  # classes that rows are counted of; None: no counts are asked for
    reports: Mapping[str, Mapping[str, Signature]] = field(default_factory=dict)  # by slot
    needs_steps: bool = False

    @classmethod
    def of(
        cls,
        model: Arrays,
        buffers: Arrays,
        max_examples: int,
        label_classes: int | None = None,
        coordinates: Arrays | None = None,
        reports: Iterable[str] = (),
        needs_steps: bool = False,
    ) -> Self:
        """The schema of replies to a broadcast of these arrays.

        ``coordinates`` has the shapes of an update that does not travel whole; a report always does.
        """
        return cls(
            _signatures(model if coordinates is None else coordinates),
            _signatures(buffers),
            max_examples,
            label_classes,
            {slot: _signatures(model) for slot in reports},
            needs_steps,
        )


@dataclass(frozen=True)
class Said:
    """What a reply holds, before anybody has looked at it."""

    update: Arrays
    buffers: Arrays
    metrics: Mapping[str, object]
    reports: Mapping[str, Arrays] = field(default_factory=dict)


class Inadmissible(ValueError):
    """Why a reply cannot be used, in one sentence."""


def admit(
    client: str, said: Said, schema: Schema, whole: Callable[[Arrays], Arrays] = lambda update: update
) -> Reply:
    """A reply that fits the schema, holds finite numbers only and gives believable counts.

    ``whole`` makes the update out of what was sent of it; that is finite too. Raises Inadmissible with the
    first thing that is wrong.
    """
    metrics = said.metrics
    _check_arrays("update", said.update, schema.update)
    _check_arrays("buffers", said.buffers, schema.buffers)
    _check_variances(said.buffers)
    _check_slots(said.reports, schema.reports)
    steps = metrics.get("steps", 0)
    if schema.needs_steps and not _is_count(steps):
        raise Inadmissible(f"steps is {steps!r}; it takes a whole number of at least 1 for this algorithm")
    examples = metrics.get("num-examples")
    if not isinstance(examples, int) or isinstance(examples, bool):
        raise Inadmissible(f"num-examples is {examples!r}; it takes a whole number")
    if not 0 < examples <= schema.max_examples:
        raise Inadmissible(f"num-examples is {examples}; it takes 1 to {schema.max_examples}")
    numbers = {name: float(v) for name, v in metrics.items() if isinstance(v, int | float)}
    series = {name: tuple(map(float, v)) for name, v in metrics.items() if _numbers(v)}
    labels = None if schema.label_classes is None else _label_counts(metrics, schema.label_classes)
    update = whole(said.update)
    if update is not said.update:
        _check_finite("update, made whole,", update)  # sums of finite coordinates can overflow
    known_steps = int(steps) if isinstance(steps, int) and _is_count(steps) else 0
    return Reply(client, update, said.buffers, examples, numbers, labels, known_steps, said.reports, series)


def _numbers(value: object) -> TypeGuard[list[int | float]]:
    return isinstance(value, list) and all(isinstance(x, int | float) for x in value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53


def _check_slots(reports: Mapping[str, Arrays], expected: Mapping[str, Mapping[str, Signature]]) -> None:
    if reports.keys() != expected.keys():
        raise Inadmissible(f"the reply reports {_listed(reports)}; this algorithm takes {_listed(expected)}")
    for slot, signatures in expected.items():
        _check_arrays(f'report "{slot}"', reports[slot], signatures)


def _listed(slots: Iterable[str]) -> str:
    return ", ".join(sorted(slots)) or "nothing beside the update"


def _label_counts(metrics: Mapping[str, object], classes: int) -> tuple[int, ...]:
    counts = metrics.get("label-counts")
    takes = f"{classes} whole numbers, one a class, for this run's weighting"
    if not isinstance(counts, list) or len(counts) != classes:
        got = f"{len(counts)} values" if isinstance(counts, list) else repr(counts)
        raise Inadmissible(f"label-counts is {got}; it takes {takes}")
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in counts) or not any(counts):
        raise Inadmissible(f"label-counts holds something else than counts; it takes {takes}")
    return tuple(counts)


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
        if x.dtype.kind == "f":
            _check_finite(what, {name: x})


def _check_finite(what: str, arrays: Arrays) -> None:
    for name, x in arrays.items():
        if not finite(x):
            raise Inadmissible(f'{what} "{name}" holds NaN or infinity')


def _check_variances(buffers: Arrays) -> None:
    """A negative variance is finite, but its root, and with it all that a model says from then on, is NaN."""
    for name, x in buffers.items():
        if name.endswith(VARIANCE) and np.less(x, 0).any():
            raise Inadmissible(f'buffers "{name}" holds a negative number; it takes variances')


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
