"""How a tensor becomes a signal, and back.

The order of axes is that of the tensor's logical indices: memory layouts such as channels_last make no
difference.
"""

from functools import lru_cache

import torch
from torch import Tensor

from common.filter_settings import NATURAL, RANDOM
from common.filters.draws import drawn


@lru_cache(maxsize=256)
def axes(order: str, ndim: int) -> tuple[int, ...]:
    """``order`` for a tensor of ``ndim`` axes: digits it lacks are dropped, further axes come last.

    "1023" is (1, 0) for a matrix; "10" is (1, 0, 2, 3) for four axes.
    """
    named = [int(digit) for digit in order if int(digit) < ndim]
    return (*named, *(axis for axis in range(ndim) if axis not in named))


def flatten(tensor: Tensor, order: str, seed: int, name: str) -> Tensor:
    """The tensor's elements as a signal, the last of the ordered axes fastest; a view where that can be.

    "random" permutes all elements, by the seed and the tensor's name.
    """
    if order == RANDOM:
        return tensor.reshape(-1)[drawn(seed, "filter-order", name, tensor.numel(), tensor.device)]
    turned = tensor if _is_natural(order, tensor.ndim) else tensor.permute(axes(order, tensor.ndim))
    return turned.reshape(-1)


def unflatten(signal: Tensor, like: Tensor, order: str, seed: int, name: str) -> Tensor:
    """The inverse of ``flatten``: contiguous, of the shape of ``like``."""
    if order == RANDOM:
        places = drawn(seed, "filter-order", name, len(signal), signal.device)
        return torch.empty_like(signal).index_copy_(0, places, signal).view(like.shape)
    if _is_natural(order, like.ndim):
        return signal.view_as(like)
    turned = axes(order, like.ndim)
    back = sorted(range(like.ndim), key=turned.__getitem__)
    return signal.view([like.shape[axis] for axis in turned]).permute(back).contiguous()


def _is_natural(order: str, ndim: int) -> bool:
    return order == NATURAL or axes(order, ndim) == tuple(range(ndim))
