"""Do the nodes' models see the server's own rows alike? Features in front of the head, and their CKA."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.batches import to_tensors
from common.datasets import Examples
from common.errors import ModelError
from common.models import Head
from common.params import Arrays, carried, load_into, trainable
from strategies.drift.cka import mean_cka

BATCH = 250  # rows


def features(model: nn.Module, head: Head, x: Tensor) -> Tensor:
    """What the head's layer takes for the inputs ``x``: its input, (rows, units).

    The model is in evaluation mode then, and stays in it. Raises ModelError if the head's weight is not that
    of a layer which the model calls.
    """
    path = head.weight.rpartition(".")[0]
    taken: list[Tensor] = []
    hook = model.get_submodule(path).register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0]))
    try:
        with torch.no_grad():
            model.eval()(x)
    finally:
        hook.remove()
    if not path or not taken:
        raise ModelError(
            f'diagnostics-probe takes a head that is a layer of its own; "{head.weight}" is used by the '
            "model without calling one"
        )
    return taken[-1].reshape(len(x), -1)


@dataclass(frozen=True)
class Probe:
    """A copy of the run's model, to load local models into, and rows to show them."""

    frame: nn.Module
    head: Head
    examples: Examples
    device: torch.device

    def cka(self, models: Iterable[tuple[Arrays, Arrays]]) -> float | None:
        """The mean linear CKA over all pairs of models, given as parameters and buffers.

        One model is in memory at a time. ``None`` where it is not defined.
        """
        return mean_cka(self._features(models))

    def _features(self, models: Iterable[tuple[Arrays, Arrays]]) -> Iterator[NDArray[np.generic]]:
        for parameters, buffers in models:
            load_into(trainable(self.frame), parameters)
            load_into(carried(self.frame), buffers)
            batches = (
                range(i, min(i + BATCH, len(self.examples))) for i in range(0, len(self.examples), BATCH)
            )
            yield np.concatenate(
                [
                    features(self.frame, self.head, to_tensors(self.examples, np.array(rows), self.device)[0])
                    .float()
                    .cpu()
                    .numpy()
                    for rows in batches
                ]
            )


def make_probe(model: nn.Module, head: Head, examples: Examples, rows: int, device: torch.device) -> Probe:
    """A probe with ``rows`` of the examples, evenly spread over them; all, if there are no more.

    ``model`` is copied and not touched. Raises ModelError if its head cannot be looked at.
    """
    chosen = np.linspace(0, len(examples) - 1, min(rows, len(examples))).astype(np.int64)
    frame = copy.deepcopy(model).to(device)
    probe = Probe(frame, head, examples.rows(chosen), device)
    features(frame, head, to_tensors(probe.examples, np.arange(1), device)[0])
    return probe
