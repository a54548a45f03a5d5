"""What travels between server and nodes in coordinates instead of whole.

================  ===========================================================================================
uplink full       updates travel whole
uplink kept-bins  updates travel without the frequency bins that the FFT filter keeps at zero: exact without
                  weight decay, because an update then has none there
algorithm ssf     updates and the control variate travel as coordinates in the round's random subspace
================  ===========================================================================================
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from common.codec import Codec, Make, Shapes, bins, codec, coordinates, kept_bins, matrices
from common.config import RunConfig
from common.filters import keep
from common.params import Arrays, Params, ParamsFilter, to_arrays


@dataclass(frozen=True)
class Traffic:
    """Codecs for one round; None sends whole tensors. Node and server have equal ones."""

    update: Codec | None = None
    slots: Codec | None = None

    def encode_update(self, update: Arrays) -> Arrays:
        """What is sent of an update."""
        return _through(self.update, update, Codec.encode)

    def decode_update(self, sent: Arrays) -> Arrays:
        """The update, from what was sent of it."""
        return _through(self.update, sent, Codec.decode)

    def encode_slot(self, slot: Arrays) -> Arrays:
        """What is sent of a slot of the server's."""
        return _through(self.slots, slot, Codec.encode)

    def decode_slot(self, sent: Arrays) -> Arrays:
        """The slot, from what was sent of it."""
        return _through(self.slots, sent, Codec.decode)

    def as_received(self, slot: Arrays) -> Arrays:
        """The slot as it comes out at the other end."""
        return self.decode_slot(self.encode_slot(slot))

    def project_on(self, device: torch.device) -> ParamsFilter:
        """Onto the subspace that slots travel in, for tensors on ``device``."""
        return keep if self.slots is None else self.slots.on(device).project


WHOLE = Traffic()

_SSF: dict[str, Callable[[RunConfig, int], Make]] = {
    "matrix": lambda c, epoch: matrices(c.ssf_rank, c.seed, epoch),
    "coordinate": lambda c, epoch: coordinates(c.ssf_rank, c.seed, epoch),
    "spectral": lambda c, epoch: bins(c.ssf_rank, c.seed, epoch, c.filter_ratio),
}


def _subspace(config: RunConfig, shapes: Shapes, filtered: set[str], round_: int) -> Traffic:
    epoch = (round_ - 1) // config.ssf_refresh
    subspace = codec(_SSF[config.ssf_projector](config, epoch), shapes)
    return Traffic(subspace, subspace)


_TRAFFIC: dict[str, Callable[[RunConfig, Shapes, set[str], int], Traffic]] = {
    "full": lambda config, shapes, filtered, round_: WHOLE,
    "kept-bins": lambda config, shapes, filtered, round_: Traffic(
        update=codec(kept_bins(config.filter_ratio, filtered), shapes)
    ),
    "subspace": _subspace,
}


def traffic(config: RunConfig, shapes: Shapes, filtered: set[str], round_: int) -> Traffic:
    """The traffic of a round, for parameters of these shapes of which ``filtered`` meet the run's filter."""
    way = "subspace" if config.traits.subspace else config.uplink
    return _TRAFFIC[way](config, shapes, filtered, round_)


def _through(using: Codec | None, arrays: Arrays, way: Callable[[Codec, Params], Params]) -> Arrays:
    return arrays if using is None else to_arrays(way(using, _tensors(arrays)))


def _tensors(arrays: Mapping[str, object]) -> Params:
    return {name: torch.tensor(x) for name, x in arrays.items()}
