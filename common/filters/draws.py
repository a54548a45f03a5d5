"""Permutations that a run's seed and a tensor's name draw, the same on every node."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from common.seeding import stream

CPU = torch.device("cpu")


@lru_cache(maxsize=512)
def drawn(seed: int, purpose: str, name: str, count: int, device: torch.device = CPU) -> Tensor:
    """A permutation of ``range(count)`` for the tensor called ``name``, int64; not to be changed.

    It orders raw words of the generator: NumPy promises them for all its versions, unlike ``permutation``. It
    stays on ``device``: a copy in each step would hold a GPU up.
    """
    if device != CPU:
        return drawn(seed, purpose, name, count).to(device)
    words = stream(seed, purpose, name).bit_generator.random_raw(count)
    return torch.from_numpy(np.argsort(np.asarray(words), kind="stable"))
