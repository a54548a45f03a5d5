"""A round's gradients compared, client with client: tensor by tensor, so that no two spectra of the whole
model are in memory at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from common.bands import has_bands
from common.filters import keep
from common.params import Arrays, ParamsFilter
from common.slots import GRADIENT
from strategies.drift.bands import Bands, layer_bands, over_layers
from strategies.drift.divergence import Divergence, divergence
from strategies.round import Reply

SHORTEST_PATH = 1e-100  # steps times rate below which dividing by it may overflow
Source = Literal["updates", "gradients"]


@dataclass(frozen=True)
class Gradients:
    """What is compared: of each client named arrays, and what they are multiplied by."""

    source: Source
    clients: tuple[str, ...]
    arrays: tuple[Arrays, ...]
    scales: tuple[float, ...]


@dataclass(frozen=True)
class LayerDrift:
    """One tensor."""

    name: str
    raw: Divergence
    filtered: Divergence | None  # after the gradient filter; None: it changes nothing here, or was not asked


@dataclass(frozen=True)
class Drift:
    """A round's drift."""

    bands: Bands | None  # None: no tensor has as many bins as there are bands
    layers: tuple[LayerDrift, ...]
    left_out: tuple[str, ...]  # tensors with fewer bins than bands; they are among the layers


def gradients_of(replies: Sequence[Reply], wanted: Source, lr: float) -> Gradients:
    """The gradients that a round's replies tell of.

    With ``gradients`` wanted, and sent by every client, those. Otherwise the updates as ``Delta / (K lr)``
    with the K steps that a client says it took, a mean gradient up to its sign; clients that give no such
    count are left out. Never some of each, because the two cannot be compared.
    """
    sent = [reply.reports.get(GRADIENT) for reply in replies]
    arrays = tuple(x for x in sent if x is not None)
    if wanted == "gradients" and len(arrays) == len(replies):
        return Gradients("gradients", _names(replies), arrays, (1.0,) * len(replies))
    moved = {reply.client: reply.steps * lr for reply in replies}
    counted = [reply for reply in replies if SHORTEST_PATH <= moved[reply.client] < math.inf]
    scales = tuple(1 / moved[reply.client] for reply in counted)
    return Gradients("updates", _names(counted), tuple(reply.update for reply in counted), scales)


def compare(gradients: Gradients, trial: ParamsFilter = keep) -> Drift:
    """The drift between clients, at least one, and what filtering with ``trial`` makes of it.

    Tensors with fewer bins than bands have no part in the spectrum. Peak memory beside the arrays: about
    20 bytes for each element of the largest tensor and each client.
    """
    layers, spectra, left_out = [], [], []
    for name, first in gradients.arrays[0].items():
        rows = [
            np.asarray(arrays[name], dtype=np.float64).ravel() * scale
            for arrays, scale in zip(gradients.arrays, gradients.scales, strict=True)
        ]
        layers.append(LayerDrift(name, divergence(rows), _filtered(name, first.shape, rows, trial)))
        if has_bands(first.size):
            spectra.append(layer_bands(rows))
        else:
            left_out.append(name)
    return Drift(over_layers(spectra) if spectra else None, tuple(layers), tuple(left_out))


def _filtered(
    name: str, shape: tuple[int, ...], rows: list[NDArray[np.float64]], trial: ParamsFilter
) -> Divergence | None:
    """``None`` for a tensor that the filter hands back as it is."""
    import torch

    filtered = []
    for row in rows:  # a row at a time, because a filter needs room beside what it filters
        tensor = torch.from_numpy(row).reshape(shape)
        out = trial({name: tensor})[name]
        if out is tensor:
            return None
        filtered.append(out.reshape(-1).numpy())
    return divergence(filtered)


def _names(replies: Sequence[Reply]) -> tuple[str, ...]:
    return tuple(reply.client for reply in replies)
