"""Models by name, their first parameters, and which parameter is the classifier's head.

A model is any ``nn.Module`` that turns a batch of inputs into logits of shape (batch, classes). The
built-in ones carry no BatchNorm: its statistics are not parameters and differ between nodes, so
``resnet20`` has GroupNorm in its place.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from math import ceil, inf, prod
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from common import memo
from common.errors import ModelError, nearest
from common.plugins import call, is_plugin
from common.seeding import torch_seed

Shape = tuple[int, ...]
Builder = Callable[[Shape, int], nn.Module]

_NORM_GROUPS = 8
_LISTED = 12  # tensors that an error about the head lists


@dataclass(frozen=True)
class Head:
    """The last layer: its weight has one row for each class."""

    weight: str
    bias: str | None
    shape: Shape  # (classes, ...)


@final
class Mlp4(nn.Module):
    """Four linear layers with ReLU, for inputs of any shape."""

    def __init__(self, input_shape: Shape, classes: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(prod(input_shape), 200)
        self.fc2 = nn.Linear(200, 100)
        self.fc3 = nn.Linear(100, 50)
        self.fc4 = nn.Linear(50, classes)
        _start_like_he(self.fc1, self.fc2, self.fc3)

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
        _start_like_he(self.conv1, self.conv2, self.conv3, self.fc1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) for images (batch, channels, height, width)."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.max_pool2d(F.relu(self.conv3(x)), self.window)
        x = F.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits


@final
class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut without parameters (option A of the paper)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.padding = (channels_out - channels_in) // 2
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(_NORM_GROUPS, channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(_NORM_GROUPS, channels_out)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels_in, h, w) -> (batch, channels_out, h / stride, w / stride)."""
        inner = F.relu(self.norm1(self.conv1(x)))
        inner = self.norm2(self.conv2(inner))
        return F.relu(inner + self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            return x
        strided = x[:, :, :: self.stride, :: self.stride]
        return F.pad(strided, (0, 0, 0, 0, self.padding, self.padding))


@final
class ResNet20(nn.Module):
    """ResNet-20 in its CIFAR form (He et al., 2016, section 4.2), with GroupNorm (Wu & He, 2018).

    Three stages of 16, 32 and 64 channels with three blocks each, for images of at least 4x4.
    """

    def __init__(self, input_shape: Shape, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(input_shape[0], 16, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(_NORM_GROUPS, 16)
        self.stage1 = _stage(16, 16, stride=1)
        self.stage2 = _stage(16, 32, stride=2)
        self.stage3 = _stage(32, 64, stride=2)
        self.fc = nn.Linear(64, classes)
        _start_like_he(*(module for module in self.modules() if isinstance(module, nn.Conv2d)))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) for images (batch, channels, height, width)."""
        x = F.relu(self.norm1(self.conv1(x)))
        x = self.stage3(self.stage2(self.stage1(x)))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def _start_like_he(*layers: nn.Conv2d | nn.Linear) -> None:
    """Initialise layers before a ReLU as He et al. (2015) do, so that signals keep their size."""
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _stage(channels_in: int, channels_out: int, stride: int) -> nn.Sequential:
    first = ResidualBlock(channels_in, channels_out, stride)
    return nn.Sequential(first, *(ResidualBlock(channels_out, channels_out, 1) for _ in range(2)))


def _for_images(name: str, builder: Builder) -> Builder:
    def checked(input_shape: Shape, classes: int) -> nn.Module:
        if len(input_shape) != 3 or min(input_shape[1:]) < 4:
            raise ModelError(
                f'model "{name}" takes images (channels, height, width) of at least 4x4; '
                f"the data has inputs of shape {input_shape}"
            )
        return builder(input_shape, classes)

    return checked


MODELS: dict[str, Builder] = {
    "mlp4": Mlp4,
    "cnn5": _for_images("cnn5", Cnn5),
    "resnet20": _for_images("resnet20", ResNet20),
}


def build(name: str, input_shape: Shape, classes: int, seed: int) -> nn.Module:
    """The model called ``name``, on the CPU, with initial parameters that follow from ``seed`` alone.

    ``name`` is a key of ``MODELS`` or ``module:function``, a function of the user's that is called with
    ``(input_shape, classes)`` and returns an ``nn.Module``. The global random state stays as it was.
    Raises ModelError if there is no such model, or it does not fit the shape.
    """
    builder = MODELS.get(name) or _own_builder(name)
    key = ("model", name, input_shape, classes, seed)
    return memo.once(key, lambda: _begun(builder, input_shape, classes, seed), _size_to_keep, _copy_of)


def _begun(builder: Builder, input_shape: Shape, classes: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would reseed CUDA's global generators as well.
        torch.default_generator.manual_seed(torch_seed(seed, "init"))
        return builder(input_shape, classes)


def _copy_of(model: nn.Module) -> nn.Module:
    """What ``deepcopy`` returns, in half its time: most goes into each layer's dozen empty containers."""
    values = [value for part in model.modules() for value in vars(part).values()]
    return deepcopy(model, {id(x): type(x)() for x in values if isinstance(x, dict | set) and not x})


def _size_to_keep(model: nn.Module) -> float:
    """Bytes; infinite for a model that might not survive ``deepcopy``.

    A function inside a user's module, or a hook, may refer to the very module it was made for. Only PyTorch's
    own layers and the classes above, with nothing attached to them, are certain to come out as they went in.
    """
    ours = {Mlp4, Cnn5, ResNet20, ResidualBlock}
    plain = all(
        (type(part) in ours or type(part).__module__.startswith("torch.nn.modules."))
        and not any("hooks" in name and value for name, value in vars(part).items())
        and not any(getattr(value, "__closure__", None) for value in vars(part).values())
        for part in model.modules()
    )
    state = [*model.parameters(), *model.buffers()]
    return sum(x.numel() * x.element_size() for x in state) if plain else inf


def _own_builder(name: str) -> Builder:
    if not is_plugin(name):
        known = ", ".join(MODELS)
        hint = nearest(name, MODELS)
        raise ModelError(f'unknown model "{name}"; takes {known} or module:function. {hint}'.rstrip())

    def builder(input_shape: Shape, classes: int) -> nn.Module:
        model = call(name, (input_shape, classes), ModelError)
        if not isinstance(model, nn.Module):
            raise ModelError(
                f'"{name}" must return a torch.nn.Module for (input_shape, classes); '
                f"it returned {type(model).__name__}"
            )
        for key, p in [*model.named_parameters(), *model.named_buffers()]:
            if is_lazy(p):
                raise ModelError(f'"{name}" has a lazy layer: "{key}" has no shape yet; name its input size')
        for key, p in model.named_parameters():
            if p.dtype not in (torch.float32, torch.float64):
                raise ModelError(
                    f'"{name}" must have float32 parameters, which amp computes with in half precision; '
                    f'"{key}" is {str(p.dtype).removeprefix("torch.")}'
                )
        return model

    return builder


def require_logits(model: nn.Module, input_shape: Shape, classes: int) -> None:
    """Raise ModelError unless ``model`` takes float32 inputs and gives one number a class for each row.

    Two rows of zeros go through it in evaluation mode, in which nothing is learnt from them.
    """
    try:
        with evaluating(model), torch.no_grad():
            output = model(torch.zeros(2, *input_shape))
    except Exception as error:  # a user's own code raises what it likes
        raise ModelError(
            f"the model does not take inputs of {tuple(input_shape)}: {type(error).__name__}: {error}"
        ) from error
    got = f"{tuple(output.shape)}" if isinstance(output, torch.Tensor) else type(output).__name__
    if got != f"{(2, classes)}":
        raise ModelError(f"the model must give (2, {classes}) logits for 2 rows; it gave {got}")


def resolve_head(model: nn.Module, classes: int, name: str = "") -> Head:
    """The classifier's last layer.

    ``name`` is the full name of its weight. Without it, the head is the last trainable parameter of two
    or more axes with ``classes`` rows. Its bias, if it has one, carries the same prefix.
    Raises ModelError, with the parameters that could be meant, if there is none.
    """
    trainable = {key: tuple(p.shape) for key, p in model.named_parameters() if p.requires_grad}
    matrices = {key: shape for key, shape in trainable.items() if len(shape) >= 2}
    fitting = [key for key, shape in matrices.items() if shape[0] == classes]
    if name:
        _check_named(model, name, classes, matrices, fitting)
    elif not fitting:
        raise ModelError(
            f"no head found: no trainable parameter has {classes} rows, one a class; "
            f"there are {_listing(matrices)}. Name the head's weight with the key head"
        )
    weight = name or fitting[-1]
    prefix, dot, _ = weight.rpartition(".")
    bias = f"{prefix}{dot}bias"
    return Head(weight, bias if trainable.get(bias) == (classes,) else None, matrices[weight])


def _check_named(
    model: nn.Module, name: str, classes: int, matrices: dict[str, Shape], fitting: list[str]
) -> None:
    if name in fitting:
        return
    parameters = dict(model.named_parameters())
    if name not in parameters:
        hint = nearest(name, matrices) or f"There are {_listing(matrices)}"
        raise ModelError(f'head "{name}" is not a parameter of the model. {hint}')
    got = "a frozen parameter" if not parameters[name].requires_grad else f"{tuple(parameters[name].shape)}"
    candidates = ", ".join(f'"{key}"' for key in fitting) or "none"
    raise ModelError(
        f'head "{name}" must be a trainable parameter of two or more axes with {classes} rows, '
        f"one a class; it is {got}. Candidates: {candidates}"
    )


def _listing(matrices: dict[str, Shape]) -> str:
    shown = [f'"{key}" {shape}' for key, shape in matrices.items()][-_LISTED:]
    hidden = len(matrices) - len(shown)
    more = [f"{hidden} earlier ones"] if hidden else []
    return ", ".join([*shown, *more]) or "no trainable parameters of two or more axes"


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode meanwhile; each part returns to the mode it had on its own."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def count_parameters(model: nn.Module) -> int:
    """How many numbers the model's parameters hold, frozen ones included, shared ones once."""
    return sum(p.numel() for p in model.parameters())
