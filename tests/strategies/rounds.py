"""Small rounds for tests, and what a slow, obvious version of the mathematics says."""

import math

import numpy as np

from common.models import Head
from common.params import Arrays
from strategies.round import Reply, Round


def head_round(heads: dict[str, object], biases: dict[str, object] | None = None, **extra: int) -> Round:
    """A round whose model is a head only, with these head updates by client."""
    arrays = {name: np.array(m, dtype=np.float64) for name, m in heads.items()}
    shape = next(iter(arrays.values())).shape
    model = {"head.weight": np.zeros(shape)}
    if biases is not None:
        model["head.bias"] = np.zeros(shape[0])
    replies = []
    for name in sorted(arrays):
        update = {"head.weight": arrays[name]}
        if biases is not None:
            update["head.bias"] = np.array(biases[name], dtype=np.float64)
        examples = extra.get(name, 10)
        replies.append(Reply(name, update, {}, examples, label_counts=(examples,) * shape[0]))
    head = Head("head.weight", None if biases is None else "head.bias", shape)
    return Round(1, model, head, tuple(replies))


def whole_round(updates: dict[str, Arrays], model: Arrays | None = None, **labels: tuple[int, ...]) -> Round:
    """A round with these whole updates by client and, if given, their label counts. The first tensor of two
    axes is the head's weight."""
    first = next(iter(updates.values()))
    weight = next(name for name, x in first.items() if x.ndim > 1)
    replies = tuple(
        Reply(name, updates[name], {}, sum(labels.get(name, (10,))), label_counts=labels.get(name))
        for name in sorted(updates)
    )
    zero = {name: np.zeros_like(x) for name, x in first.items()}
    return Round(1, model or zero, Head(weight, None, first[weight].shape), replies)


def entropy_by_svd(m: np.ndarray) -> float:
    """The definition: p from the squared singular values, sum of -p ln p."""
    squares = np.linalg.svd(m, compute_uv=False) ** 2
    if squares.sum() == 0:
        return 0.0
    return -sum(p * math.log(p) for p in squares / squares.sum() if p > 1e-15)


def kalman_by_matrices(
    x: np.ndarray, variance: np.ndarray, z: np.ndarray, noise: np.ndarray, q: float
) -> tuple[np.ndarray, np.ndarray]:
    """Each client's textbook filter with observation matrix [1, 1]^T: z is (signals, m)."""
    h = np.ones((len(noise), 1))
    means, variances = [], []
    for i in range(len(x)):
        p = variance[i] + q
        gain = p * h.T @ np.linalg.inv(p * h @ h.T + np.diag(noise))  # (1, signals)
        means.append(x[i] + (gain @ (z[:, i] - x[i]))[0])
        variances.append(((1 - gain @ h) * p)[0, 0])
    return np.array(means), np.array(variances)
