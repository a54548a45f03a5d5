"""How good a model is on labelled examples. Nodes and server measure with the same function."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.batches import to_tensors
from common.datasets import Examples


@dataclass(frozen=True)
class Metrics:
    """A model's quality on ``examples`` rows."""

    loss: float  # mean cross-entropy, in nats
    accuracy: float  # 0..1
    balanced_accuracy: float  # mean over the classes that occur of the share found, 0..1
    examples: int


def evaluate(model: nn.Module, examples: Examples, device: torch.device, batch_size: int = 500) -> Metrics:
    """Measure ``model``, which lies on ``device`` and gives one logit a class.

    The model runs in evaluation mode and is in its former mode afterwards. The result does not depend on
    ``batch_size`` beyond rounding; a model that gives NaN has the loss NaN. Raises ValueError if there
    are no examples.
    """
    if len(examples) == 0:
        raise ValueError("there are no examples to evaluate on")
    loss = torch.zeros((), dtype=torch.float64, device=device)
    hits = torch.zeros(examples.classes, dtype=torch.float64, device=device)  # by true class
    with _evaluating(model), torch.inference_mode():
        for start in range(0, len(examples), batch_size):
            index = np.arange(start, min(start + batch_size, len(examples)))
            x, y = to_tensors(examples, index, device)
            logits = model(x).float()
            loss += F.cross_entropy(logits, y, reduction="none").double().sum()
            hits.index_add_(0, y, (logits.argmax(1) == y).double())
    return _metrics(loss, hits, examples)


def _metrics(loss: Tensor, hits: Tensor, examples: Examples) -> Metrics:
    # One copy from the device, and so one wait for it.
    total_loss, *found = torch.cat([loss.reshape(1), hits]).tolist()
    occurring = np.bincount(examples.y, minlength=examples.classes)
    recalls = np.array(found)[occurring > 0] / occurring[occurring > 0]
    n = len(examples)
    return Metrics(total_loss / n, sum(found) / n, float(recalls.mean()), n)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode meanwhile; each part returns to the mode it had on its own."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
