"""From rows of examples to tensors on a device."""

import numpy as np
import torch
from torch import Tensor

from common.datasets import Array, Examples, Rows


def to_tensors(examples: Examples, index: Rows, device: torch.device) -> tuple[Tensor, Tensor]:
    """The rows ``index`` on ``device``: inputs as float32 (rows, *input_shape), classes as int64 (rows,).

    uint8 inputs become ``(value / 255 - 0.5) / 0.25``, so that they lie in [-2, 2]; float inputs stay as
    they are. On CUDA the copies are asynchronous, and bytes travel before they become floats.
    """
    x = _moved(examples.x.take(index, axis=0), device)
    y = _moved(np.take(examples.y, index), device)
    if x.dtype == torch.uint8:
        x = x.float().mul_(4 / 255).sub_(2)
    return x, y


def _moved(array: Array, device: torch.device) -> Tensor:
    host = torch.from_numpy(array)
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)
