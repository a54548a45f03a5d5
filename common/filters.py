"""Gradient filters in the frequency domain, and how they meet a model's tensors.

SpecGradFilter (arXiv 2607.04189): client drift under non-IID data sits in the low frequencies of each
layer's gradient, so every local step drops them::

    x = flatten(g)      X = rFFT(x)      X[0 .. z-1] = 0      Phi(g) = irFFT(X)      z = floor(r * nb)

with ``nb = floor(d / 2) + 1`` bins for a tensor of ``d`` elements. Phi is an orthogonal projection, the
same one on every node and in every round. Two consequences are worth knowing. With plain SGD and no
weight decay the low bins of a filtered tensor never move from their initial values. And the filter takes
5 % of the bins but often half of a weight gradient's energy: a step is shorter as well as turned.

A *filter* works on signals, the last axis of a stack of rows. ``lift`` makes it work on named tensors.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from common.params import Params, ParamsFilter

_LONG = 4096  # elements from which on the CPU filters a signal in parts; below, that costs more
_MOST_PARTS = 16


class Filter(Protocol):
    """A map of signals to signals of the same length."""

    def changes(self, length: int) -> bool:
        """Whether a signal of so many elements can come out different."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Filter the last axis of ``rows`` (..., length); float32 or float64 in, the same out."""


@lru_cache(maxsize=4096)
def low_bins(ratio: float, length: int) -> int:
    """``floor(ratio * bins)``, the number of low bins of a real signal of ``length`` elements.

    Exact: a binary 0.29 times 100 bins would give 28. At ratio 0.05 the first length that has a low
    bin is 38, because it is the first with 20 bins.
    """
    return math.floor(Fraction(str(ratio)) * (length // 2 + 1))


@dataclass(frozen=True)
class FftHighPass:
    """Zero the lowest ``floor(ratio * bins)`` of the ``length // 2 + 1`` frequency bins.

    An orthogonal projection: linear, symmetric, idempotent, never lengthens a signal. It removes the
    mean (bin 0) as soon as it removes anything. Ratio 0, or a signal too short to lose a whole bin,
    is left as it is.
    """

    ratio: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.ratio < 1.0:
            raise ValueError(f"ratio is a share of the frequency bins, 0 <= ratio < 1; got {self.ratio}")

    def changes(self, length: int) -> bool:
        """True if at least one bin is removed."""
        return low_bins(self.ratio, length) > 0

    def __call__(self, rows: Tensor) -> Tensor:
        """Filter the last axis of ``rows``."""
        length = rows.shape[-1]
        removed = low_bins(self.ratio, length)
        if removed == 0:
            return rows
        parts = _parts(length, removed)
        if parts > 1 and rows.device.type == "cpu":
            return _without_low_bins(rows, removed, parts)
        spectrum = torch.fft.rfft(rows)
        spectrum[..., :removed] = 0
        filtered: Tensor = torch.fft.irfft(spectrum, n=length)  # without n an odd length comes back even
        return filtered


def _without_low_bins(rows: Tensor, low: int, parts: int) -> Tensor:
    """``rows`` less what their lowest ``low`` bins contribute, exactly, without the other bins.

    Decimation in time: every ``parts``-th element makes a signal of its own, short enough for a CPU's
    cache. A bin of the whole is the sum of that bin over the short signals, each turned by its offset.
    """
    short = rows.shape[-1] // parts
    turns = _turns(rows.shape[-1], low, parts, rows.dtype.to_complex())
    woven = rows.reshape(*rows.shape[:-1], short, parts)
    bins = (torch.fft.rfft(woven.mT)[..., :low] * turns).sum(-2, keepdim=True)
    low_band: Tensor = torch.fft.irfft(bins * turns.conj(), n=short)
    return (woven - low_band.mT).reshape(rows.shape)


@lru_cache(maxsize=4096)
def _parts(length: int, low: int) -> int:
    """Into how many short signals to split a long one; 1 if it is not worth it or cannot be done.

    ``low`` bins must lie below the middle of a short signal's spectrum.
    """
    if length < _LONG:
        return 1
    return max(q for q in range(1, _MOST_PARTS + 1) if q == 1 or (length % q == 0 and 2 * q * low <= length))


@lru_cache(maxsize=64)
def _turns(length: int, low: int, parts: int, dtype: torch.dtype) -> Tensor:
    """``exp(-2 pi i j k / length)`` for offset ``j`` and bin ``k``, (parts, low).

    Scaled so that turning there and back divides by ``parts``, as the inverse transform asks for.
    """
    steps = torch.outer(torch.arange(parts), torch.arange(low)) % length  # whole: no error grows with them
    angles = steps.double() * (-2 * math.pi / length)
    return torch.polar(torch.full_like(angles, parts**-0.5), angles).to(dtype)


def eligible(shapes: Mapping[str, tuple[int, ...]], filter_: Filter, min_ndim: int) -> list[str]:
    """The names of the tensors that ``lift(filter_, min_ndim)`` changes, in order."""
    return [
        name for name, shape in shapes.items() if len(shape) >= min_ndim and filter_.changes(math.prod(shape))
    ]


def lift(filter_: Filter, min_ndim: int = 1) -> ParamsFilter:
    """Filter each tensor on its own, flattened in logical order with its last axis fastest.

    Tensors of fewer than ``min_ndim`` axes, and those that the filter would not change, come back as the
    same objects. Memory layout (channels_last) makes no difference. Half-precision tensors are filtered
    in float32. Tensors of one length are stacked and filtered in one call: most of a small transform's
    time is its set-up.
    """

    @torch.no_grad()
    def on_params(params: Params) -> Params:
        chosen = eligible({name: t.shape for name, t in params.items()}, filter_, min_ndim)
        groups: dict[tuple[int, torch.dtype, torch.device], list[str]] = defaultdict(list)
        for name in chosen:
            groups[params[name].numel(), params[name].dtype, params[name].device].append(name)
        filtered = {
            name: out.view(params[name].shape)
            for names in groups.values()
            for name, out in zip(names, _stacked(filter_, [params[n] for n in names]), strict=True)
        }
        return params | filtered

    return on_params


def _stacked(filter_: Filter, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    dtype = tensors[0].dtype
    rows = torch.stack([t.reshape(-1) for t in tensors])
    wide = rows if dtype in (torch.float32, torch.float64) else rows.float()
    return filter_(wide).to(dtype).unbind(0)


def keep(params: Params) -> Params:
    """The filter that changes nothing."""
    return params


FILTERS: dict[str, Callable[[float], Filter | None]] = {
    "none": lambda ratio: None,
    "fft": FftHighPass,
}


def build(name: str, ratio: float, min_ndim: int) -> ParamsFilter:
    """The filter called ``name`` on named tensors; ``none`` and ratio 0 are ``keep`` itself."""
    filter_ = FILTERS[name](ratio)
    return keep if filter_ is None or ratio == 0 else lift(filter_, min_ndim)


def filtered_names(
    name: str, ratio: float, min_ndim: int, shapes: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """The names of the tensors that ``build(name, ratio, min_ndim)`` changes."""
    filter_ = FILTERS[name](ratio)
    return [] if filter_ is None else eligible(shapes, filter_, min_ndim)
