"""Gradient filters, and how they meet a model's tensors.

SpecGradFilter (arXiv 2607.04189): client drift under non-IID data sits in the low frequencies of each
layer's gradient, so every local step drops them::

    x = flatten(g)      X = rFFT(x)      X[0 .. z-1] = 0      Phi(g) = irFFT(X)      z = floor(r * nb)

with ``nb = floor(d / 2) + 1`` bins for a tensor of ``d`` elements. Phi is an orthogonal projection, the
same one on every node and in every round. Two consequences are worth knowing. With plain SGD, no weight
decay and a weighted mean the low bins of a filtered tensor never move from their initial values. And the
filter takes 5 % of the bins but often half of a weight gradient's energy: a step is shorter as well as
turned.

    fft         Phi                               controls
    lap-d       less a moving average             fft-high    the highest z bins go instead
    gd          less a Gaussian average           random      z drawn bins go instead
    none        nothing                           l2-rescale  shortened as by Phi, but not turned
                                                  row-mean    only the mean of each row goes

A *filter* works on signals, the last axis of a stack of rows. ``lift`` makes it work on named tensors,
``build`` finds out on which. In a training loop of one's own: ``common.gradients``.
"""

from common.filter_settings import FilterSettings
from common.filters.builders import FILTERS, build, filtered_names
from common.filters.filter import Filter
from common.filters.lift import keep, lift
from common.filters.smoothing import Gd, LapD
from common.filters.spectral import FftHighPass, FftLowPass, L2Rescale, RandomBins, low_bins

__all__ = [
    "FILTERS",
    "FftHighPass",
    "FftLowPass",
    "Filter",
    "FilterSettings",
    "Gd",
    "L2Rescale",
    "LapD",
    "RandomBins",
    "build",
    "filtered_names",
    "keep",
    "lift",
    "low_bins",
]
