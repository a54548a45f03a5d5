"""From settings and a model to the filter of its gradients."""

from collections.abc import Callable
from math import prod

from torch import nn

from common.filter_settings import RANDOM, FilterSettings
from common.filters.filter import Filter, Identity, KeepMean, RowMean
from common.filters.layers import chosen
from common.filters.lift import keep, lift
from common.filters.order import axes
from common.filters.smoothing import Gd, LapD
from common.filters.spectral import FftHighPass, FftLowPass, L2Rescale, RandomBins
from common.params import ParamsFilter, trainable

Shape = tuple[int, ...]
Builder = Callable[[FilterSettings, str, Shape], Filter]  # a tensor's name, and its shape in filter order


def _mean_kept(filter_: Filter, settings: FilterSettings) -> Filter:
    return KeepMean(filter_) if settings.keep_dc else filter_


FILTERS: dict[str, Builder] = {
    "fft": lambda s, name, shape: FftHighPass(s.ratio, s.keep_dc),
    "lap-d": lambda s, name, shape: _mean_kept(LapD(s.ratio, s.kernel), s),
    "gd": lambda s, name, shape: _mean_kept(Gd(s.ratio, s.sigma), s),
    "fft-high": lambda s, name, shape: FftLowPass(s.ratio),
    "random": lambda s, name, shape: RandomBins(s.ratio, s.seed, name, s.keep_dc),
    "l2-rescale": lambda s, name, shape: L2Rescale(s.ratio, s.keep_dc),
    "row-mean": lambda s, name, shape: _mean_kept(RowMean(prod(shape[1:])), s),
    "none": lambda s, name, shape: Identity(),
}


def build(settings: FilterSettings, model: nn.Module) -> ParamsFilter:
    """The filter of ``model``'s named gradients; ``keep`` itself if it would change none of them.

    Raises ConfigError if ``settings.layers`` does not fit the model.
    """
    filters = filters_of(settings, model)
    return lift(filters, settings.order, settings.seed) if filters else keep


def filtered_names(settings: FilterSettings, model: nn.Module) -> list[str]:
    """The names of the tensors that ``build(settings, model)`` changes, in the model's order."""
    return list(filters_of(settings, model))


def filters_of(settings: FilterSettings, model: nn.Module) -> dict[str, Filter]:
    """The filter of each tensor that it changes, by the tensor's name."""
    if settings.kind == "none":
        return {}
    shapes = {name: tuple(p.shape) for name, p in trainable(model).items()}
    filters = {
        name: FILTERS[settings.kind](settings, name, _in_order(shapes[name], settings.order))
        for name in chosen(model, settings.layers)
        if len(shapes[name]) >= settings.min_ndim
    }
    return {name: filter_ for name, filter_ in filters.items() if filter_.changes(prod(shapes[name]))}


def _in_order(shape: Shape, order: str) -> Shape:
    return shape if order == RANDOM else tuple(shape[axis] for axis in axes(order, len(shape)))
