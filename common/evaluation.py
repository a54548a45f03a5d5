"""How good a model is on labelled examples. Nodes and server measure with the same function."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from common.batches import to_tensors
from common.datasets import Examples
from common.models import evaluating


@dataclass(frozen=True)
class Metrics:
    """A model's quality on ``examples`` rows."""

    loss: float  # mean cross-entropy, in nats
    accuracy: float  # 0..1
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
    hits = torch.zeros((), dtype=torch.float64, device=device)
    with evaluating(model), torch.no_grad():  # what a model keeps of a pass must serve in training too
        for start in range(0, len(examples), batch_size):
            index = np.arange(start, min(start + batch_size, len(examples)))
            x, y = to_tensors(examples, index, device)
            logits = model(x).float()
            loss += F.cross_entropy(logits, y, reduction="none").double().sum()
            hits += (logits.argmax(1) == y).sum()
    # One copy from the device, and so one wait for it.
    total_loss, found = torch.stack([loss, hits]).tolist()
    return Metrics(total_loss / len(examples), found / len(examples), len(examples))
