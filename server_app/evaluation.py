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

IN_ROUND = ("accuracy-before", "loss-before", "validation-examples")  # metrics of a node's own score
WHEN_ASKED = ("accuracy", "loss", "num-examples")
Told = Mapping[str, tuple[float, float, float]]  # client -> accuracy, loss and the rows they are over


@dataclass(frozen=True)
class Score:
    """What a model is worth, and on whose data."""

    accuracy: float | None = None
    loss: float | None = None
    on: Literal["server", "nodes", "none"] = "none"
    note: str = ""  # whose scores are not in it, because they are not believed

    @property
    def doubt(self) -> str:
        """Why a run that ends with this score is not simply completed; empty if it is."""
        finite = self.loss is None or math.isfinite(self.loss)
        return self.note if finite else f"the last model's loss is {self.loss}"


def on_server(model: nn.Module, test: Examples, device: torch.device) -> Score:
    """The score of ``model`` on the server's test set."""
    metrics = evaluate(model, test, device)
    return Score(metrics.accuracy, metrics.loss, "server")


def told_in_round(result: RoundResult) -> Told:
    """What nodes tell of the model that a round began with. Who tells no score is left out."""
    return _told({reply.client: reply.metrics for reply in result.accepted}, IN_ROUND)


def told_when_asked(replies: Iterable[Message], clients: Mapping[int, str]) -> Told:
    """What nodes tell of the model that they were asked to evaluate; ``clients`` are their names by node id.

    Who tells no score is left out.
    """
    metrics = {
        clients[r.metadata.src_node_id]: dict(r.content.metric_records.get(METRICS, {}))
        for r in replies
        if r.has_content() and r.metadata.src_node_id in clients
    }
    return _told(metrics, WHEN_ASKED)


def pooled(told: Told, most_rows: int) -> Score:
    """Several nodes' scores as one, weighted by their rows; without a number if there is none to believe."""
    believed = {client: one for client, one in told.items() if _believable(*one, most_rows)}
    note = "; ".join(_doubt(client, *told[client]) for client in sorted(told.keys() - believed.keys()))
    total = math.fsum(rows for _, _, rows in believed.values())
    if not total:
        return Score(note=note)
    # Sorted, so that the order of arrival changes no bit. fsum would raise where losses add up to infinity.
    accuracy = sum(sorted(one * (rows / total) for one, _, rows in believed.values()))
    loss = sum(sorted(one * (rows / total) for _, one, rows in believed.values()))
    return Score(accuracy, loss, "nodes", note)


def _told(metrics: Mapping[str, Mapping[str, object]], names: tuple[str, str, str]) -> Told:
    """The nodes' scores under these names; who lacks a number is left out."""
    said = {
        client: [float(v) for name in names if isinstance(v := m.get(name), int | float)]
        for client, m in metrics.items()
    }
    return {client: (one[0], one[1], one[2]) for client, one in said.items() if len(one) == len(names)}


def _believable(accuracy: float, loss: float, rows: float, most_rows: int) -> bool:
    return 0 <= accuracy <= 1 and 0 <= loss < math.inf and 0 < rows <= most_rows


def _doubt(client: str, accuracy: float, loss: float, rows: float) -> str:
    return f"{client}'s own score is not believed: accuracy {accuracy:g}, loss {loss:g} on {rows:g} rows"
