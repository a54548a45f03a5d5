"""The server's own labelled data, as losses for ``strategies.fedlaw``."""

import copy
from math import ceil

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from common.batches import to_tensors
from common.datasets import Examples
from common.params import Arrays, Params
from strategies.fedlaw import Proxy


def proxy_losses(model: nn.Module, examples: Examples, device: torch.device, batch_size: int) -> Proxy:
    """What models of this shape lose on ``examples``, in batches of consecutive rows.

    They run in evaluation mode on ``device``. ``model`` itself is copied and not touched.
    """
    frame = copy.deepcopy(model).to(device).eval()

    def loss(parameters: Params, buffers: Arrays, batch: int) -> Tensor:
        first = batch * batch_size
        x, y = to_tensors(examples, np.arange(first, min(first + batch_size, len(examples))), device)
        state = {name: torch.from_numpy(np.array(value)).to(device) for name, value in buffers.items()}
        state |= {name: value.to(device) for name, value in parameters.items()}
        return F.cross_entropy(functional_call(frame, state, (x,)).float(), y)

    return Proxy(ceil(len(examples) / batch_size), loss)
