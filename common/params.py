"""Algebra on named tensors: the only place that loops over a model's parameters.

``Params`` maps parameter names to torch tensors (nodes), ``Arrays`` to numpy arrays (wire and server).
No function changes its arguments.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.errors import DataError

Params = dict[str, Tensor]
Arrays = dict[str, NDArray[np.generic]]
ParamsFilter = Callable[[Params], Params]


def trainable(model: nn.Module) -> Params:
    """The model's parameters that take a gradient, by name, in the model's order. Tied ones stand once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def carried(model: nn.Module) -> Params:
    """What else belongs to the model's state: persistent buffers (BatchNorm statistics, counters) and frozen
    parameters, by name. They travel beside the parameters and stay out of filters and scores."""
    buffers = dict(model.named_buffers())
    if buffers:  # most models have none, and this takes as long as a small step
        persistent = model.state_dict(keep_vars=True)
        buffers = {name: b for name, b in buffers.items() if name in persistent}
    return buffers | {name: p for name, p in model.named_parameters() if not p.requires_grad}


def add(a: Params, b: Params) -> Params:
    """``a + b``, tensor by tensor."""
    return {name: x + b[name] for name, x in a.items()}


def sub(a: Params, b: Params) -> Params:
    """``a - b``, tensor by tensor."""
    return {name: x - b[name] for name, x in a.items()}


def scale(factor: float, a: Params) -> Params:
    """``factor * a``, tensor by tensor."""
    return {name: factor * x for name, x in a.items()}


def length(a: Params) -> Tensor:
    """The L2 norm over all tensors together, a scalar on their device; 0 for no tensors."""
    return nn.utils.get_total_norm(list(a.values()))


def to_radius(rho: float, a: Params) -> Params:
    """``rho a / ||a||``, the norm over all tensors together; zeros stay zeros."""
    factor = rho / length(a).clamp(min=1e-12)
    return {name: factor * x for name, x in a.items()}


def copy_of(a: Mapping[str, Tensor]) -> Params:
    """The same values in memory of their own, cut off from any graph."""
    return {name: x.detach().clone() for name, x in a.items()}


def to_arrays(a: Mapping[str, Tensor]) -> Arrays:
    """The same values as numpy arrays in host memory."""
    return {name: x.detach().cpu().numpy() for name, x in a.items()}


def load_into(target: Mapping[str, Tensor], arrays: Arrays) -> None:
    """Copy ``arrays`` into the tensors of the same names, whatever device they are on."""
    with torch.no_grad():
        for name, tensor in target.items():
            # Not np.ascontiguousarray, which gives an array without axes one.
            tensor.copy_(torch.from_numpy(np.asarray(arrays[name], order="C")))


def flat(groups: Mapping[str, Arrays]) -> Arrays:
    """``group -> name -> array`` as ``<group>/<name> -> array``. A group's name holds no slash."""
    return {f"{group}/{name}": x for group, arrays in groups.items() for name, x in arrays.items()}


def nested(arrays: Arrays) -> dict[str, Arrays]:
    """What ``flat`` was made from."""
    groups: dict[str, Arrays] = {}
    for key, x in arrays.items():
        group, _, name = key.partition("/")
        groups.setdefault(group, {})[name] = x
    return groups


def fitted(saved: Arrays, own: Arrays, place: object) -> Arrays:
    """``saved``, from ``place``, in the order of ``own``: files sort their tensors, and sums over all of a
    model's tensors depend on their order.

    Raises DataError unless both have the same names, shapes and types.
    """
    for name in sorted(saved.keys() | own.keys()):
        there, needed = _kind(saved.get(name)), _kind(own.get(name))
        if there != needed:
            raise DataError(f'{place} does not fit this run\'s model: "{name}" is {there}, not {needed}')
    return {name: saved[name] for name in own}


def _kind(x: NDArray[np.generic] | None) -> str:
    return "absent" if x is None else f"{x.dtype} {x.shape}"


def norm(arrays: Arrays) -> float:
    """The L2 norm over all arrays together, accumulated in float64."""
    # Not np.vdot: the BLAS threads that it wakes cost many times the sum itself.
    return float(np.sqrt(sum(float(np.square(x, dtype=np.float64).sum()) for x in arrays.values())))


def finite(x: np.ndarray) -> bool:
    """Whether an array holds neither NaN nor infinity."""
    # A finite sum proves that all are finite and needs no array of booleans; only a sum that overflowed
    # or met a NaN is looked at element by element.
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(float(x.sum())) or bool(np.isfinite(x).all())
