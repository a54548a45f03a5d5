"""Named random streams: every use of chance has a name, and no two names share numbers.

There is no global seed. A stream follows from the run's seed, its purpose and its keys (round, client)
alone, so neither the order of clients nor how often another stream was used can change it.
"""

import hashlib
import json
from operator import index

import numpy as np

Key = int | str


def stream(seed: int, purpose: str, *keys: Key) -> np.random.Generator:
    """A generator of its own for the name ``(seed, purpose, *keys)``, the same in every process."""
    return np.random.default_rng(int.from_bytes(_digest(seed, purpose, keys), "big"))


def torch_seed(seed: int, purpose: str, *keys: Key) -> int:
    """A seed in ``[0, 2**63)`` for a generator of another library, under the same naming."""
    return int.from_bytes(_digest(seed, purpose, keys)[:8], "big") >> 1


def _digest(seed: int, purpose: str, keys: tuple[Key, ...]) -> bytes:
    # JSON keeps 1 and "1", and ("a", "b") and ("ab",), apart.
    name = [index(seed), purpose, *(key if isinstance(key, str) else index(key) for key in keys)]
    return hashlib.sha256(json.dumps(name).encode()).digest()
