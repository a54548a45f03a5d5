"""The low-band filter for a model's middling tensors at once, on a CPU.

To set up a transform takes a CPU as long as to transform a dozen rows of 2,000 elements. So signals are
decimated in time (see ``decimation``) down to a length they share, and all go through one transform each way.
A GPU minds other things: see ``shared``.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from common.filters.decimation import keep_low_band
from common.filters.shared import Band, groups

_MIDDLING = range(1 << 11, 1 << 16)  # longer signals gain nothing from company, shorter ones from being cut


class _Run(NamedTuple):
    """Signals of one length, one after another."""

    band: Band
    parts: int
    rows: int  # of all of them


@lru_cache(maxsize=64)
def middling(bands: tuple[Band, ...]) -> tuple[list[int], list[int]]:
    """The places of the signals to filter with ``without_woven_bands``, and those of the others."""
    chosen = [i for i, band in enumerate(bands) if band.length in _MIDDLING]
    return chosen, [i for i, band in enumerate(bands) if band.length not in _MIDDLING]


def without_woven_bands(signals: Sequence[Tensor], bands: tuple[Band, ...], first: int) -> list[Tensor]:
    """1-D ``signals`` of one dtype on the CPU, each less its bins ``first`` to ``low - 1``, exactly.

    ``low`` is at least 1 and at most half the length. What is not finite stays in its own signal.
    """
    results = list(signals)
    for short, members, runs in _plan(bands):
        parts = [bands[i].length // short for i in members]
        woven = [signals[i].view(short, n) for i, n in zip(members, parts, strict=True)]
        spectra = torch.fft.rfft(torch.cat([x.mT for x in woven]))
        for run, rows in zip(runs, spectra.split([run.rows for run in runs]), strict=True):
            keep_low_band(rows.unflatten(0, (-1, run.parts)), run.band.length, first, run.band.low)
        low_bands = torch.fft.irfft(spectra, n=short)
        for i, x, low_band in zip(members, woven, low_bands.split(parts), strict=True):
            results[i] = (x - low_band.mT).view(-1)
    return results


@lru_cache(maxsize=64)
def _plan(bands: tuple[Band, ...]) -> list[tuple[int, tuple[int, ...], list[_Run]]]:
    """Short lengths, each with the signals to cut down to it, and their runs of one length."""
    plan = []
    for short, members in groups(bands, least=_MIDDLING.start):
        counted = [(band, len(list(same))) for band, same in groupby(bands[i] for i in members)]
        plan.append(
            (short, members, [_Run(b, b.length // short, n * (b.length // short)) for b, n in counted])
        )
    return plan
