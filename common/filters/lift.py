"""From filters of signals to a filter of named tensors."""

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from common.filter_settings import NATURAL
from common.filters.filter import Filter
from common.filters.order import flatten, unflatten
from common.params import Params, ParamsFilter

_FILTERED_AS_THEY_ARE = (torch.float32, torch.float64)

Group = tuple[Filter, torch.dtype, torch.device]


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

    @torch.no_grad()
    def on_params(params: Params) -> Params:
        groups: dict[Group, list[str]] = defaultdict(list)
        for name, t in params.items():
            filter_ = filters.get(name) if isinstance(filters, Mapping) else filters
            if filter_ is not None and filter_.changes(t.numel()) and _is_plain(t):
                groups[filter_, t.dtype, t.device].append(name)
        filtered = {}
        for (filter_, _, _), names in groups.items():
            signals = [flatten(params[name], order, seed, name) for name in names]
            for name, out in zip(names, _together(filter_, signals), strict=True):
                filtered[name] = unflatten(out, params[name], order, seed, name)
        return params | filtered

    return on_params


def _is_plain(t: Tensor) -> bool:
    return t.layout == torch.strided and t.is_floating_point()


def _together(filter_: Filter, signals: list[Tensor]) -> list[Tensor]:
    dtype = signals[0].dtype
    if dtype in _FILTERED_AS_THEY_ARE:
        return filter_.together(signals)
    return [out.to(dtype) for out in filter_.together([x.float() for x in signals])]
