"""The net and the data."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


def net() -> nn.Module:
    """64-200-100-50-10 with ReLU."""
    return nn.Sequential(
        nn.Linear(64, 200),
        nn.ReLU(),
        nn.Linear(200, 100),
        nn.ReLU(),
        nn.Linear(100, 50),
        nn.ReLU(),
        nn.Linear(50, 10),
    )


def load_data(partition: int, partitions: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """One node's training and test examples: every so manieth digit, the last fifth for tests."""
    digits = load_digits()
    x = torch.tensor(digits.data[partition::partitions], dtype=torch.float32) / 16
    y = torch.tensor(digits.target[partition::partitions])
    cut = len(x) * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])
