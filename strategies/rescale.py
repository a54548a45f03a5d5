"""Rescaling: what happens to sizes: of updates between their scores and their sum, and of their sum."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from common.params import Arrays
from strategies.round import Round, Vector
from strategies.signals.norms import norms, typical

TINY = 1e-7  # of CGSV's code: an update much smaller than this stays small

Rescale = Callable[[Round], Round]


def as_sent(round_: Round) -> Round:
    """The round as it is."""
    return round_


def equal_norms(round_: Round) -> Round:
    """Each update scaled to the round's typical norm, as CGSV asks; a zero update stays zero."""
    sizes = norms(round_)
    return rescaled(round_, np.where(sizes > 0, typical(sizes) / (sizes + TINY), 1.0))


def clipped(factor: float) -> Rescale:
    """Each update scaled down to at most ``factor`` times the round's typical norm; none is scaled up."""

    def clip(round_: Round) -> Round:
        sizes = norms(round_)
        limit = factor * typical(sizes)
        return rescaled(round_, np.minimum(1.0, limit / np.where(sizes > 0, sizes, 1.0)))

    return clip


def in_turn(first: Rescale, second: Rescale) -> Rescale:
    """Both, one after the other."""
    return lambda round_: second(first(round_))


def rescaled(round_: Round, factors: Vector) -> Round:
    """Each client's update times its factor, (m,), rounded once to its own types. 1 leaves it as it is."""
    replies = tuple(
        reply
        if factor == 1.0
        else replace(
            reply,
            # The product in float64: a factor may be too large for the update's type where it is not.
            update={
                name: np.multiply(x, factor, dtype=np.float64).astype(x.dtype)
                for name, x in reply.update.items()
            },
        )
        for reply, factor in zip(round_.replies, factors.tolist(), strict=True)
    )
    return replace(round_, replies=replies)


def resized(model: Arrays, update: Mapping[str, Vector], factor: float) -> dict[str, Vector]:
    """The update that leads to ``factor (w + D)`` instead of ``w + D``."""
    return {
        name: factor * (np.asarray(w, dtype=np.float64) + update[name]) - np.asarray(w, dtype=np.float64)
        for name, w in model.items()
    }
