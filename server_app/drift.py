"""From a round's replies to the ledger's record of how far the nodes are apart."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from common.config import RunConfig
from common.filters import build, filtered_names, keep
from common.ledger import DriftRecord, LayerDrift
from common.params import Arrays, ParamsFilter
from common.traits import FILTERS
from server_app.probe import Probe
from strategies.drift import comparison
from strategies.drift.bands import Bands
from strategies.drift.comparison import Source, compare, gradients_of
from strategies.flower import RoundResult
from strategies.reward import trained
from strategies.round import Vector


@dataclass(frozen=True)
class Diagnostics:
    """What a run looks at after each round."""

    source: Source
    filtered: bool  # whether updates have passed the gradient filter
    trial: ParamsFilter = keep  # what gradients that have not are filtered with, to see what it would change
    probe: Probe | None = None

    def look(self, result: RoundResult, lr: float) -> DriftRecord | None:
        """The drift of a round in which nodes trained with the learning rate ``lr``.

        ``None`` if there is no gradient to look at: no reply, or none that says how many steps it took.
        """
        started = time.monotonic()
        gradients = gradients_of(result.accepted, self.source, lr)
        if not gradients.clients:
            return None
        filtered = self.filtered and gradients.source == "updates"
        found = compare(gradients, keep if filtered else self.trial)
        alike = None if self.probe is None else self.probe.cka(_local_models(result))
        return DriftRecord(
            round=result.number,
            source=gradients.source,
            filtered=filtered,
            clients=len(gradients.clients),
            **_spectrum(found.bands),
            layers=tuple(_layer(layer) for layer in found.layers),
            left_out=found.left_out,
            cka=alike,
            seconds=time.monotonic() - started,
        )


def diagnostics(config: RunConfig, model: nn.Module, probe: Probe | None) -> Diagnostics:
    """The diagnostics of a run of this model whose ``diagnostics`` are not off.

    Tried is the run's own filter, or the FFT filter with the same settings where the run has none.
    """
    source: Source = "gradients" if config.diagnostics == "gradients" else "updates"
    settings = config.filter_settings
    low_cut = FILTERS[settings.kind].cuts_low and not {"gradient", "sent"}.isdisjoint(config.sites)
    passed = low_cut and bool(filtered_names(settings, model))
    tried = replace(settings, kind="fft") if settings.kind == "none" else settings
    return Diagnostics(source, passed, build(tried, model), probe)


def _local_models(result: RoundResult) -> Iterator[tuple[Arrays, Arrays]]:
    for reply in result.accepted:
        yield trained(result.sent[reply.client], reply.update), reply.buffers


def _spectrum(bands: Bands | None) -> dict[str, tuple[float, ...]]:
    if bands is None:
        return {}
    total = float(bands.energy.sum())
    energy = bands.energy / total if total > 0 else np.full(len(bands.energy), np.nan)
    return {"dist": _finite(bands.dist), "std": _finite(bands.std), "energy": _finite(energy)}


def _finite(values: Vector) -> tuple[float, ...]:
    return tuple(values.tolist()) if np.isfinite(values).all() else ()


def _layer(layer: comparison.LayerDrift) -> LayerDrift:
    raw, filtered = layer.raw, layer.filtered
    return LayerDrift(
        name=layer.name,
        absolute=_number(raw.absolute),
        relative=_number(raw.relative),
        cosine=_number(raw.cosine),
        filtered_relative=None if filtered is None else _number(filtered.relative),
        filtered_cosine=None if filtered is None else _number(filtered.cosine),
    )


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
