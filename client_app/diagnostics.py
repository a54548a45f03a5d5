"""What a node says of its first step's gradient: a few numbers, not the gradient."""

import numpy as np
import torch

from common.bands import BANDS, band_energies
from common.params import Params, ParamsFilter


def spectrum(gradient: Params, phi: ParamsFilter) -> dict[str, list[float]]:
    """``energy-removed``: of each tensor that ``phi`` changes, in the model's order, the share of its squared
    norm that is gone, 0..1 for a projection. ``band-energies``: the squared norm of all tensors by frequency
    band, lowest first; tensors with fewer bins than bands are left out.
    """
    filtered = phi(gradient)
    changed = [name for name, x in gradient.items() if filtered[name] is not x]
    removed = [_removed(gradient[name].double(), filtered[name].double()) for name in changed]
    bands = np.zeros(BANDS)
    for x in gradient.values():
        bands += band_energies(x.detach().cpu().float().numpy())
    return {"energy-removed": removed, "band-energies": bands.tolist()}


def _removed(before: torch.Tensor, after: torch.Tensor) -> float:
    whole = float(before.square().sum())
    return 1.0 - float(after.square().sum()) / whole if whole > 0 else 0.0
