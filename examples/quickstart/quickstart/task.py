"""The task: a small net for scikit-learn's handwritten digits."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F


class Net(nn.Module):
    """64 pixels, 32 hidden units with BatchNorm, 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.norm = nn.BatchNorm1d(32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, 10) for pixels (batch, 64)."""
        logits: Tensor = self.fc2(F.relu(self.norm(self.fc1(x))))
        return logits


def load_data(partition: int, partitions: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """One node's training and test examples: every so manieth digit, the last fifth for tests."""
    digits = load_digits()
    x = torch.tensor(digits.data[partition::partitions], dtype=torch.float32) / 16
    y = torch.tensor(digits.target[partition::partitions])
    cut = len(x) * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def train(net: nn.Module, data: tuple[Tensor, Tensor], epochs: int, lr: float) -> float:
    """Train in place; the mean loss of the last epoch."""
    x, y = data
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    losses: list[float] = []
    for _ in range(epochs):
        losses = []
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def test(net: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Loss and accuracy."""
    x, y = data
    net.eval()
    with torch.no_grad():
        logits = net(x)
    return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()
