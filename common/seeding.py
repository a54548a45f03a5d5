"""Named random streams: every use of chance has a name, and no two names share numbers.

There is no global seed. A stream follows from the run's seed, its purpose and its keys (round, client)
alone, so neither the order of clients nor how often another stream was used can change it.

NumPy may change what a generator's methods draw from one version to the next, but not its raw words. What
all nodes must draw alike, whatever NumPy they have, is made of those: ``permutation``, ``subset`` and
``uniforms``.
"""

import hashlib
import json
from operator import index

import numpy as np
from numpy.typing import NDArray

Key = int | str


def stream(seed: int, purpose: str, *keys: Key) -> np.random.Generator:
    """A generator of its own for the name ``(seed, purpose, *keys)``, the same in every process."""
    return np.random.default_rng(int.from_bytes(_digest(seed, purpose, keys), "big"))


def torch_seed(seed: int, purpose: str, *keys: Key) -> int:
    """A seed in ``[0, 2**63)`` for a generator of another library, under the same naming."""
    return int.from_bytes(_digest(seed, purpose, keys)[:8], "big") >> 1


def permutation(generator: np.random.Generator, count: int) -> NDArray[np.int64]:
    """``range(count)`` in a random order."""
    return np.argsort(_words(generator, count), kind="stable")


def subset(generator: np.random.Generator, size: int, count: int) -> NDArray[np.int64]:
    """``size`` different numbers of ``range(count)``, from 1 to ``count`` of them, sorted."""
    return np.sort(np.argpartition(_words(generator, count), size - 1)[:size])


def uniforms(generator: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Numbers between 0 and 1, neither of which is among them: the odd multiples of 2**-53."""
    odd = _words(generator, count) >> np.uint64(12) << np.uint64(1) | np.uint64(1)
    return odd.astype(np.float64) * 2.0**-53


def _words(generator: np.random.Generator, count: int) -> NDArray[np.uint64]:
    return np.asarray(generator.bit_generator.random_raw(count), dtype=np.uint64)


def _digest(seed: int, purpose: str, keys: tuple[Key, ...]) -> bytes:
    # JSON keeps 1 and "1", and ("a", "b") and ("ab",), apart.
    name = [index(seed), purpose, *(key if isinstance(key, str) else index(key) for key in keys)]
    return hashlib.sha256(json.dumps(name).encode()).digest()
