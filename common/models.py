"""Models by name, their first parameters, and which parameter is the classifier's head.

A model is any ``nn.Module`` that turns a batch of inputs into logits of shape (batch, classes).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from math import inf

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from common import memo, words
from common.errors import ModelError, nearest
from common.nets import Cnn5, Dan, Mlp4, ResidualBlock, ResNet, Shape
from common.plugins import call, is_plugin
from common.seeding import torch_seed

Builder = Callable[[Shape, int], nn.Module]

_LISTED = 12  # tensors that an error about the head lists


@dataclass(frozen=True)
class Head:
    """The last layer: its weight has one row for each class."""

    weight: str
    bias: str | None
    shape: Shape  # (classes, ...)


def _for_images(name: str, builder: Builder) -> Builder:
    def checked(input_shape: Shape, classes: int) -> nn.Module:
        if len(input_shape) != 3 or min(input_shape[1:]) < 4:
            raise ModelError(
                f'model "{name}" takes images (channels, height, width) of at least 4x4; '
                f"the data has inputs of shape {input_shape}"
            )
        return builder(input_shape, classes)

    return checked


def _for_texts(name: str, builder: Builder) -> Builder:
    def checked(input_shape: Shape, classes: int) -> nn.Module:
        if input_shape != (words.LENGTH,):
            raise ModelError(
                f'model "{name}" takes texts, whose inputs have the shape {(words.LENGTH,)}; '
                f"the data has inputs of shape {input_shape}"
            )
        return builder(input_shape, classes)

    return checked


def _of_torchvision(name: str) -> Builder:
    def builder(input_shape: Shape, classes: int) -> nn.Module:
        from common import vision  # loads torchvision, which a node without such a model can do without

        return vision.NETS[name](input_shape, classes)

    return _for_images(name, builder)


MODELS: dict[str, Builder] = {
    "mlp4": Mlp4,
    "cnn5": _for_images("cnn5", Cnn5),
    "resnet20": _for_images("resnet20", ResNet),
    "wrn56-2": _for_images("wrn56-2", partial(ResNet, blocks=9, width=2)),
    **{
        name: _of_torchvision(name) for name in ("resnet18", "resnet50", "densenet121", "vit-tiny", "vit-b16")
    },
    "dan": _for_texts("dan", Dan),
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
    ours = {Mlp4, Cnn5, Dan, ResNet, ResidualBlock}
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
