"""What a model is worth: on the server's own test set, or by what nodes tell of their validation rows."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from common.datasets import Examples
from common.evaluation import evaluate
from common.messages import METRICS, Message
from strategies.flower import RoundResult

TESTED_ON = "validation-examples"  # the metric with the number of rows that a node tested on
Told = tuple[float, float, float]  # a node's own accuracy, loss and the number of rows they are over


@dataclass(frozen=True)
class Score:
    """What a model is worth, and on whose data."""

    accuracy: float | None = None
    loss: float | None = None
    on: Literal["server", "nodes", "none"] = "none"

    @property
    def doubt(self) -> str:
        """Why a run that ends with this score is not simply completed; empty if it is."""
        finite = self.loss is None or math.isfinite(self.loss)
        return "" if finite else f"the last model's loss is {self.loss}"


def on_server(model: nn.Module, test: Examples, device: torch.device) -> Score:
    """The score of ``model`` on the server's test set."""
    metrics = evaluate(model, test, device)
    return Score(metrics.accuracy, metrics.loss, "server")


def told_in_round(result: RoundResult) -> dict[str, Told]:
    """What nodes tell of the model that a round began with, by client. Who tells no score is left out."""
    told = {
        reply.client: _told(reply.metrics, "accuracy-before", "loss-before", TESTED_ON)
        for reply in result.accepted
    }
    return {client: one for client, one in told.items() if one is not None}


def told_when_asked(replies: Iterable[Message]) -> list[Told]:
    """What nodes tell of the model that they were asked to evaluate. Who tells no score is left out."""
    metrics: list[Mapping[str, object]] = [
        dict(r.content.metric_records.get(METRICS, {})) for r in replies if r.has_content()
    ]
    told = [_told(m, "accuracy", "loss", "num-examples") for m in metrics]
    return [one for one in told if one is not None]


def pooled(told: Iterable[Told]) -> Score:
    """Several nodes' scores as one, weighted by their rows; an empty score if there is none."""
    parts = list(told)
    if not parts:
        return Score()
    total = sum(n for _, _, n in parts)
    return Score(sum(a * n for a, _, n in parts) / total, sum(x * n for _, x, n in parts) / total, "nodes")


def _told(metrics: Mapping[str, object], accuracy: str, loss: str, count: str) -> Told | None:
    """A node's own score under these names; None for what is missing or no finite number."""
    values = [metrics.get(name) for name in (accuracy, loss, count)]
    numbers = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 and numbers[2] > 0 else None
