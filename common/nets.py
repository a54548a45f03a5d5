"""The built-in nets. None carries BatchNorm, whose statistics are not parameters and differ between nodes:
GroupNorm stands in its place.
"""

from math import ceil, prod
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import words

NORM_GROUPS = 8

Shape = tuple[int, ...]


@final
class Mlp4(nn.Module):
    """Four linear layers with ReLU, for inputs of any shape."""

    def __init__(self, input_shape: Shape, classes: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(prod(input_shape), 200)
        self.fc2 = nn.Linear(200, 100)
        self.fc3 = nn.Linear(100, 50)
        self.fc4 = nn.Linear(50, classes)
        start_like_he(self.fc1, self.fc2, self.fc3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) for inputs (batch, *input_shape)."""
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        x = F.relu(self.fc3(x))
        logits: Tensor = self.fc4(x)
        return logits


@final
class Cnn5(nn.Module):
    """Three convolutions and two linear layers, for images of at least 4x4.

    The last pooling leaves at most 4x4 positions, whatever the image's size.
    """

    def __init__(self, input_shape: Shape, classes: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 48, 3, padding=1)
        self.conv3 = nn.Conv2d(48, 64, 3, padding=1)
        sides = (height // 4, width // 4)  # after two poolings
        # Fixed windows, because adaptive pooling has no repeatable gradient on CUDA.
        self.window = (ceil(sides[0] / 4), ceil(sides[1] / 4))
        positions = (sides[0] // self.window[0]) * (sides[1] // self.window[1])
        self.fc1 = nn.Linear(64 * positions, 64)
        self.fc2 = nn.Linear(64, classes)
        start_like_he(self.conv1, self.conv2, self.conv3, self.fc1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) for images (batch, channels, height, width)."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.max_pool2d(F.relu(self.conv3(x)), self.window)
        x = F.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits


@final
class Dan(nn.Module):
    """A deep averaging network (Iyyer et al., 2015) for texts as ``words.numbered`` gives them.

    The mean of the words' embeddings goes through a layer norm and two linear layers. The norm is ours:
    without it plain SGD hardly moves embeddings. The mean of no words is zero.
    """

    def __init__(self, input_shape: Shape, classes: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words.NUMBERS, width)
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, width)
        self.fc2 = nn.Linear(width, classes)
        nn.init.normal_(self.embedding.weight, std=0.02)
        start_like_he(self.fc1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) for words by number (batch, ``words.LENGTH``), 0 after a text's end."""
        present = (x > 0).to(self.embedding.weight.dtype)
        total = torch.einsum("nl,nld->nd", present, self.embedding(x.long()))
        mean = total / present.sum(1, keepdim=True).clamp(min=1)
        logits: Tensor = self.fc2(F.relu(self.fc1(self.norm(mean))))
        return logits


@final
class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut without parameters (option A of the paper)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.padding = (channels_out - channels_in) // 2
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(NORM_GROUPS, channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(NORM_GROUPS, channels_out)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels_in, h, w) -> (batch, channels_out, h / stride, w / stride)."""
        inner = F.relu(self.norm1(self.conv1(x)))
        inner = self.norm2(self.conv2(inner))
        return F.relu(inner + self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.stride == 1 and self.padding == 0:
            return x
        strided = x[:, :, :: self.stride, :: self.stride]
        return F.pad(strided, (0, 0, 0, 0, self.padding, self.padding))


@final
class ResNet(nn.Module):
    """A ResNet in its CIFAR form (He et al., 2016, section 4.2), with GroupNorm (Wu & He, 2018).

    Three stages of 16, 32 and 64 channels times ``width``, with ``blocks`` blocks each: of depth
    ``6 blocks + 2``. For images of at least 4x4.
    """

    def __init__(self, input_shape: Shape, classes: int, blocks: int = 3, width: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(input_shape[0], 16, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(NORM_GROUPS, 16)
        self.stage1 = _stage(16, 16 * width, 1, blocks)
        self.stage2 = _stage(16 * width, 32 * width, 2, blocks)
        self.stage3 = _stage(32 * width, 64 * width, 2, blocks)
        self.fc = nn.Linear(64 * width, classes)
        start_like_he(*(module for module in self.modules() if isinstance(module, nn.Conv2d)))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) for images (batch, channels, height, width)."""
        x = F.relu(self.norm1(self.conv1(x)))
        x = self.stage3(self.stage2(self.stage1(x)))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def start_like_he(*layers: nn.Conv2d | nn.Linear) -> None:
    """Initialise layers before a ReLU as He et al. (2015) do, so that signals keep their size."""
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _stage(channels_in: int, channels_out: int, stride: int, blocks: int) -> nn.Sequential:
    first = ResidualBlock(channels_in, channels_out, stride)
    return nn.Sequential(first, *(ResidualBlock(channels_out, channels_out, 1) for _ in range(blocks - 1)))
