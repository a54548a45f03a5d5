"""Gradient filters in a training loop of one's own. Needs PyTorch and NumPy, nothing else.

Filter what ``backward`` left, after unscaling (AMP) and all-reduce (DDP), before clipping and the step.
"""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from common.filter_settings import FilterSettings
from common.filters import build
from common.params import ParamsFilter, trainable


def filter_gradients(model: nn.Module, kind: str = "fft", ratio: float = 0.05, **settings: Any) -> None:
    """Filter the gradients of ``model`` in place; call it between ``backward()`` and ``step()``.

    ``settings`` are the other fields of ``FilterSettings``. Parameters without a gradient, with a sparse
    one, or that the filter leaves alone keep what they have. Raises ConfigError for settings that make
    no filter.
    """
    _filter_in_place(model, build(FilterSettings(kind, ratio, **settings), model))


@torch.no_grad()
def _filter_in_place(model: nn.Module, filter_: ParamsFilter) -> None:
    before = {name: p.grad for name, p in trainable(model).items() if p.grad is not None}
    for name, filtered in filter_(before).items():
        if filtered is not before[name]:
            before[name].copy_(filtered)


@final
class FilteredOptimizer(Optimizer):
    """``optimizer``, which sees the filtered gradients of ``model``.

    It shares parameter groups, state and hooks with ``optimizer``, so that learning-rate schedulers,
    ``state_dict``, closures (LBFGS) and ``GradScaler`` work as ever. The filter is built once: layers that
    start or stop taking a gradient later are not noticed. Raises ConfigError for settings that make no
    filter.
    """

    # Of a fused optimizer, which would unscale by itself, and only after the filter: GradScaler must do it.
    _step_supports_amp_scaling = False

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        kind: str = "fft",
        ratio: float = 0.05,
        **settings: Any,
    ) -> None:
        # Not super().__init__(), which would make parameter groups and a state of its own.
        self.optimizer = optimizer
        self._model = model
        self._filter = build(FilterSettings(kind, ratio, **settings), model)

    def __getattr__(self, name: str) -> Any:
        """Whatever is not here is the wrapped optimizer's: ``param_groups``, ``state``, hooks."""
        if name == "optimizer":  # not there yet
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __getstate__(self) -> dict[str, Any]:
        """All of it, for ``copy.deepcopy``: PyTorch's own state lacks what is only here."""
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Filter, then step. With a closure, whatever it leaves is filtered, each time it is called."""
        if closure is None:
            _filter_in_place(self._model, self._filter)
            return self.optimizer.step()

        def filtered() -> Any:
            loss: Tensor | float = closure()
            _filter_in_place(self._model, self._filter)
            return loss

        return self.optimizer.step(filtered)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer does."""
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the wrapped optimizer."""
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """To the wrapped optimizer."""
        self.optimizer.add_param_group(param_group)
