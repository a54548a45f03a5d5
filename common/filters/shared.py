"""The low-band filter for many tensors at once, in as few operations as can be.

A GPU takes longer to start an operation than to filter a small tensor. A model's lengths are mostly
multiples of a few short ones. So signals are decimated in time (see ``decimation``) down to a length they
share, and all the pieces go through one batched transform.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from common.filters.decimation import parts_of, turns_of

_MOST_PARTS = 32


class Band(NamedTuple):
    """A signal's length, and how many of its lowest bins go."""

    length: int
    low: int


class _Plan(NamedTuple):
    """How signals laid end to end become rows of one short length, and back."""

    places: Tensor  # (rows * short,) element of the laid signals that each element of the rows is
    turns: Tensor  # (rows, bins), zero where a signal keeps its bin
    owners: Tensor  # (rows,) the signal that a row is a part of
    sizes: tuple[tuple[int, int], ...]  # (parts, signals), for each number of parts in turn


def without_low_bands(signals: Sequence[Tensor], bands: tuple[Band, ...], first: int) -> list[Tensor]:
    """1-D ``signals`` of one dtype and device, each less its bins ``first`` to ``low - 1``, exactly.

    ``low`` is at least 1 and at most half the length. What is not finite stays in its own signal.
    """
    results = list(signals)
    for short, members in groups(bands):
        lengths = [bands[i].length for i in members]
        laid = torch.cat([signals[i] for i in members])
        plan = _plan(short, tuple(bands[i] for i in members), first, laid.dtype, laid.device)
        filtered = _filtered(laid, short, plan)
        for i, x in zip(members, torch.split(filtered, lengths), strict=True):
            results[i] = x
    return results


def _filtered(laid: Tensor, short: int, plan: _Plan) -> Tensor:
    rows = laid.index_select(0, plan.places).view(-1, short)
    turned = torch.fft.rfft(rows)[:, : plan.turns.shape[1]] * plan.turns
    pieces = torch.split(turned, [parts * count for parts, count in plan.sizes])
    sums = [x.view(-1, parts, x.shape[1]).sum(1) for x, (parts, _) in zip(pieces, plan.sizes, strict=True)]
    bins = torch.cat(sums).index_select(0, plan.owners) * plan.turns.conj()
    less = rows - torch.fft.irfft(bins, n=short)
    return torch.empty_like(laid).index_copy_(0, plan.places, less.view(-1))


@lru_cache(maxsize=64)
def groups(bands: tuple[Band, ...], least: float = math.inf) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Short lengths, each with the signals to cut down to it, by their number of parts.

    The shortest signal of a group is cut as well, where that leaves parts of at least ``least`` elements.
    """
    left = sorted(range(len(bands)), key=lambda i: bands[i].length)
    found = []
    while left:
        length, low = bands[left[0]]
        short = length // parts_of(length, low, least)
        members = tuple(i for i in left if _can_be_cut(bands[i], short))
        found.append((short, members))
        left = [i for i in left if i not in members]
    return tuple(found)


def _can_be_cut(band: Band, short: int) -> bool:
    """Whether the band lies below the middle of a short signal's spectrum, whole parts given."""
    parts, rest = divmod(band.length, short)
    return rest == 0 and parts <= _MOST_PARTS and 2 * band.low <= short


@lru_cache(maxsize=64)
def _plan(short: int, bands: tuple[Band, ...], first: int, dtype: torch.dtype, device: torch.device) -> _Plan:
    widest = max(band.low for band in bands)
    places: list[Tensor] = []
    owners: list[int] = []
    start = 0
    turns = torch.zeros(sum(band.length // short for band in bands), widest, dtype=dtype.to_complex())
    for i, band in enumerate(bands):
        parts, row = band.length // short, len(owners)
        places.append(start + torch.arange(band.length).view(short, parts).T.reshape(-1))
        turns[row : row + parts, : band.low] = turns_of(band.length, band.low, parts, turns.dtype)
        owners += [i] * parts
        start += band.length
    turns[:, :first] = 0
    counts = groupby(band.length // short for band in bands)
    return _Plan(
        torch.cat(places).to(device),
        turns.to(device),
        torch.tensor(owners).to(device),
        tuple((parts, len(list(same))) for parts, same in counts),
    )
