"""A second device for machines without a GPU: the CPU computes it, but where tensors lie matters as on CUDA.

``DEVICE`` is one of PyTorch's backends written in Python. An operation that mixes its tensors with the CPU's raises,
numpy does not take them, and results are the CPU's, bit for bit. It has no streams, no pinned memory, no
generators and no half precision of its own: those need a GPU.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("second")
DEVICE = torch.device("second:0")

_ATEN = torch.ops.aten
_MAY_MIX = {"_to_copy", "copy_"}  # CUDA takes indices of the CPU as well, but fetches them at each use
# A lazy conjugate is a mark on the inner tensor that the one around it would have to carry too.
_INSTEAD = {_ATEN._conj.default: _ATEN.conj_physical.default}


class OnDevice(Tensor):
    """A tensor of the device; ``inner`` holds its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnDevice":
        outer: OnDevice = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        outer.inner = inner
        return outer

    def tolist(self) -> Any:
        """As on CUDA; PyTorch has none for classes like this."""
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _carry_out(operation, args, kwargs or {})


class Present(TorchDispatchMode):
    """``with Present()``: the device is there meanwhile, and tensors can be made on it and moved to it.

    Sees also the operations that take no tensor of the device, such as those that make one.
    """

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _carry_out(operation, args, kwargs or {})


def _carry_out(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = operation._schema.name.removeprefix("aten::")
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    outers = {id(x.inner): x for x in tensors if isinstance(x, OnDevice)}
    others = [
        x for x in tensors if not isinstance(x, OnDevice) and (x.dim() > 0 or x is _written(operation, args))
    ]
    if outers and others and name not in _MAY_MIX:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device; found {DEVICE} and cpu")
    target = kwargs.get("device")
    if name == "copy_":
        target = args[0].device
    if "device" in kwargs:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = _INSTEAD.get(operation, operation)(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    if not (outers if target is None else target.type == DEVICE.type):
        return result
    # What an operation changed in place is the tensor it was given.
    return tree_map(lambda x: outers.get(id(x), OnDevice(x)) if isinstance(x, Tensor) else x, result)


def _written(operation: Any, args: Any) -> Any:
    """What an operation changes in place; CUDA lets a lone number of the CPU take part, but not be that."""
    alias = operation._schema.arguments[0].alias_info if args else None
    return args[0] if alias is not None and alias.is_write else None


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, OnDevice) else x


# torch.tensor(..., device=...) works below what classes and modes see.
_kernels = torch.library.Library("aten", "IMPL")


def _empty_strided(size: Any, stride: Any, dtype: Any = None, **_: object) -> Tensor:
    return OnDevice(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _inner(target).copy_(_inner(source))
    return target


_kernels.impl("empty_strided", _empty_strided, "PrivateUse1")
_kernels.impl("_copy_from", _copy_from, "PrivateUse1")
