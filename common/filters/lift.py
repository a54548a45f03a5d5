"""From filters of signals to a filter of named tensors."""

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor

from common.filter_settings import NATURAL
from common.filters.filter import Filter
from common.filters.order import flatten, unflatten
from common.params import Params, ParamsFilter

_FILTERED_AS_THEY_ARE = (torch.float32, torch.float64)

Kind = tuple[str, int, torch.dtype, torch.device, torch.layout]  # a name, and all that its group hangs on


def keep(params: Params) -> Params:
    """The filter that changes nothing."""
    return params


def lift(filters: Filter | Mapping[str, Filter], order: str = NATURAL, seed: int = 0) -> ParamsFilter:
    """Filter each tensor on its own, flattened in ``order``: all with one filter, or each that has one by
    its name.

    Other tensors, those that their filter would not change, sparse ones and those that hold no real
    floating-point numbers come back as the same objects. Memory layout (channels_last) makes no
    difference. Half-precision tensors are filtered in float32. Tensors with one filter are filtered in one
    call: most of a small transform's time is its set-up.
    """

    @lru_cache(maxsize=4)
    def groups(kinds: tuple[Kind, ...]) -> list[tuple[Filter, list[str]]]:
        found: dict[tuple[Filter, torch.dtype, torch.device], list[str]] = defaultdict(list)
        for name, length, dtype, device, layout in kinds:
            filter_ = filters.get(name) if isinstance(filters, Mapping) else filters
            plain = layout == torch.strided and dtype.is_floating_point
            if filter_ is not None and filter_.changes(length) and plain:
                found[filter_, dtype, device].append(name)
        return [(filter_, names) for (filter_, _, _), names in found.items()]

    @torch.no_grad()
    def on_params(params: Params) -> Params:
        filtered = {}
        kinds = tuple([(name, t.numel(), t.dtype, t.device, t.layout) for name, t in params.items()])
        for filter_, names in groups(kinds):
            signals = [flatten(params[name], order, seed, name) for name in names]
            for name, out in zip(names, _together(filter_, signals), strict=True):
                filtered[name] = unflatten(out, params[name], order, seed, name)
        return params | filtered

    return on_params


def _together(filter_: Filter, signals: list[Tensor]) -> list[Tensor]:
    dtype = signals[0].dtype
    if dtype in _FILTERED_AS_THEY_ARE:
        return filter_.together(signals)
    return [out.to(dtype) for out in filter_.together([x.float() for x in signals])]
