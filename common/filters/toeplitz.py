"""Subtracting a weighted local average by matrix products, which are faster than convolutions on CPUs.

The average of a block of neighbouring elements is a fixed matrix times a slightly longer stretch of the
signal. That matrix is the same for all blocks of all signals, so that many signals laid end to end, with
zeros between them, need one product. Near a signal's end the zeros count for nothing: the sum of the
weights that met elements divides.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

Weights = tuple[float, ...]  # odd in number, symmetric, of sum 1

Like = tuple[torch.device, torch.dtype]

_LONG = 1 << 15  # elements from which on a CPU saves by not copying a signal
_WIDEST = 128  # elements to one side from which on Fourier transforms are faster


def less_average(signals: Sequence[Tensor], weights: Weights) -> list[Tensor]:
    """Each 1-D signal less the weighted average around each element; near an end, the weights of the
    elements that exist, divided by their sum. One dtype and device; results share no memory."""
    if len(weights) // 2 > _WIDEST:
        return [_less_wide_average(signal, weights) for signal in signals]
    in_place = [x.device.type == "cpu" and len(x) >= _LONG for x in signals]
    short = iter(_end_to_end([x for x, long in zip(signals, in_place, strict=True) if not long], weights))
    return [
        _less_average(x, weights) if long else next(short) for x, long in zip(signals, in_place, strict=True)
    ]


def _end_to_end(signals: list[Tensor], weights: Weights) -> list[Tensor]:
    if not signals:
        return []
    radius, block, like = len(weights) // 2, _block(weights), (signals[0].device, signals[0].dtype)
    lengths = tuple(len(x) for x in signals)
    rooms = [_room(length, block) for length in lengths]
    laid = signals[0].new_zeros(sum(rooms) + block)  # zeros keep what is not finite from its neighbours
    starts = list(accumulate(rooms, initial=0))[:-1]
    for x, start in zip(signals, starts, strict=True):
        laid[radius + start : radius + start + len(x)] = x
    average = laid.new_empty(sum(rooms))
    _averages(laid, average.view(-1, block), *_banded(weights, block, like))
    less = torch.addcmul(laid[radius : radius + len(average)], average, _shares(lengths, weights, like))
    return [less[start : start + n] for n, start in zip(lengths, starts, strict=True)]


def _less_average(signal: Tensor, weights: Weights) -> Tensor:
    """The same for one long signal, where it lies."""
    length, radius, like = len(signal), len(weights) // 2, (signal.device, signal.dtype)
    block = _block(weights)
    blocks = (length - 2 * radius) // block  # whole ones, a radius away from both ends
    end = radius + blocks * block
    out = torch.empty_like(signal)
    _averages(signal, out[radius:end].view(blocks, block), *_banded_less(weights, block, like))
    head = _dense(weights, 2 * radius, 0, radius, like)
    torch.mv(head, signal[: 2 * radius], out=out[:radius])
    reach = length - end + radius
    torch.mv(_dense(weights, reach, radius, reach, like), signal[-reach:], out=out[end:])
    return out


def _averages(signal: Tensor, out: Tensor, own: Tensor, next_: Tensor) -> None:
    """Row b of ``out``: what the two matrices make of block b of ``signal`` and of the start of the next."""
    blocks, block = out.shape
    torch.mm(signal[: blocks * block].view(blocks, block), own, out=out)
    following = signal.as_strided((blocks, len(next_)), (block, 1), signal.storage_offset() + block)
    out.addmm_(following, next_)


def _less_wide_average(signal: Tensor, weights: Weights) -> Tensor:
    length, radius = len(signal), len(weights) // 2
    padded = 1 << (length + 2 * radius - 1).bit_length()  # room for what a circular convolution wraps around
    kernel = torch.fft.rfft(torch.tensor(weights, dtype=signal.dtype, device=signal.device), n=padded)

    def sums(x: Tensor) -> Tensor:
        whole: Tensor = torch.fft.irfft(torch.fft.rfft(x, n=padded) * kernel, n=padded)
        return whole[radius : radius + length]

    return signal - sums(signal) / sums(torch.ones_like(signal))


def _block(weights: Weights) -> int:
    """Elements that a row of the matrix product gives: at least as many as the next block lends it."""
    return max(32, 1 << (len(weights) - 2).bit_length())


def _room(length: int, block: int) -> int:
    """Elements from one signal's start to the next one's: whole blocks, and one that is nobody's result."""
    return (-(-length // block) + 1) * block


@lru_cache(maxsize=64)
def _dense(weights: Weights, length: int, start: int, end: int, like: Like) -> Tensor:
    """The matrix that takes a signal of ``length`` elements to its filtered ones ``start`` to ``end - 1``,
    (end - start, length), both ends of the signal being ends."""
    own = torch.eye(length, dtype=torch.float64)[start:end]
    return (own - _means(weights, length, start, end)).to(*like)


def _means(weights: Weights, length: int, start: int, end: int) -> Tensor:
    radius = len(weights) // 2
    offsets = torch.arange(length)[None, :] - torch.arange(start, end)[:, None] + radius
    inside = (offsets >= 0) & (offsets <= 2 * radius)
    band = torch.tensor(weights, dtype=torch.float64)[offsets.clamp(0, 2 * radius)] * inside
    return band / band.sum(1, keepdim=True)


@lru_cache(maxsize=64)
def _banded(weights: Weights, block: int, like: Like) -> tuple[Tensor, Tensor]:
    """Matrices for averages: of the block that starts a radius earlier, and of the start of the next."""
    radius = len(weights) // 2
    whole = _means(weights, block + 2 * radius, radius, radius + block).T
    return whole[:block].to(*like).contiguous(), whole[block:].to(*like).contiguous()


@lru_cache(maxsize=64)
def _banded_less(weights: Weights, block: int, like: Like) -> tuple[Tensor, Tensor]:
    """The same for elements less their averages."""
    radius = len(weights) // 2
    own, next_ = _banded(weights, block, (torch.device("cpu"), torch.float64))
    centre = torch.eye(block + 2 * radius, dtype=torch.float64)[:, radius : radius + block]
    return (centre[:block] - own).to(*like), (centre[block:] - next_).to(*like)


@lru_cache(maxsize=8)
def _shares(lengths: tuple[int, ...], weights: Weights, like: Like) -> Tensor:
    """Minus one over the sum of the weights that meet elements, for signals laid end to end."""
    radius, block, shares = len(weights) // 2, _block(weights), []
    below = torch.tensor(weights, dtype=torch.float64).cumsum(0)  # below[i]: the weights up to the i-th
    for length in lengths:
        before = torch.arange(length).clamp(max=radius)
        after = before.flip(0)
        met = below[radius + after] - below[radius - before]
        met = met + torch.tensor(weights, dtype=torch.float64)[radius - before]
        share = torch.zeros(_room(length, block), dtype=torch.float64)
        share[:length] = -1 / met
        shares.append(share)
    return torch.cat(shares).to(*like)
