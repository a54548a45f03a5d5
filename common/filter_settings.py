"""What a gradient filter is told: its kind, its width, and on which tensors and in which order it works.

Without PyTorch, because a configuration is read in processes that never need it.
"""

import math
from dataclasses import dataclass

from common.errors import ConfigError, nearest
from common.traits import FILTERS

NATURAL = "0123"
RANDOM = "random"


@dataclass(frozen=True)
class FilterSettings:
    """A filter and where it applies; ConfigError for what no filter can be built from."""

    kind: str = "fft"
    ratio: float = 0.05  # share of the frequency bins, 0 <= ratio < 1; 0 switches every kind off but row-mean
    kernel: int = 0  # lap-d: elements that are averaged, odd; 0 follows from the ratio
    sigma: float = 0.0  # gd: standard deviation of the Gaussian, in elements; 0 follows from the ratio
    keep_dc: bool = False  # leave a tensor's mean as it is
    order: str = NATURAL  # of the axes when a tensor is flattened, or "random"
    layers: str = "auto"  # "auto", "all", or patterns of tensors' names
    min_ndim: int = 1  # tensors of fewer axes are left alone
    seed: int = 0  # of random bins and of a random order

    def __post_init__(self) -> None:
        if self.kind not in FILTERS:
            hint = nearest(self.kind, FILTERS)
            raise ConfigError(f'unknown filter "{self.kind}"; takes {", ".join(FILTERS)}. {hint}'.rstrip())
        if not 0.0 <= self.ratio < 1.0:
            raise ConfigError(f"a filter's ratio is a share of the bins, 0 <= ratio < 1; got {self.ratio}")
        if self.kernel != 0 and (self.kernel < 3 or self.kernel % 2 == 0):
            raise ConfigError(f"a filter's kernel is odd and at least 3, or 0; got {self.kernel}")
        if not 0.0 <= self.sigma < math.inf:
            raise ConfigError(f"a filter's sigma is positive, or 0; got {self.sigma}")
        if self.order != RANDOM and sorted(self.order) != [str(axis) for axis in range(len(self.order))]:
            raise ConfigError(
                f'a filter\'s order names each axis once, such as "1023", or is "random"; got "{self.order}"'
            )
        if not self.layers.strip():
            raise ConfigError("a filter's layers are auto, all or patterns of names; got none")
