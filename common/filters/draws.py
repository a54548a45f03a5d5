"""Permutations that a run's seed and a tensor's name draw, the same on every node."""

from functools import lru_cache

import torch
from torch import Tensor

from common.seeding import permutation, stream

CPU = torch.device("cpu")


@lru_cache(maxsize=512)
def drawn(seed: int, purpose: str, name: str, count: int, device: torch.device = CPU) -> Tensor:
    """A permutation of ``range(count)`` for the tensor called ``name``, int64; not to be changed.

    It stays on ``device``: a copy in each step would hold a GPU up.
    """
    if device != CPU:
        return drawn(seed, purpose, name, count).to(device)
    return torch.from_numpy(permutation(stream(seed, purpose, name), count))
