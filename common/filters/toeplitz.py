"""Subtracting a weighted local average by matrix products, which CPUs do faster than convolutions.

The average of a block of neighbouring elements is a fixed matrix times a slightly longer stretch. Inside
a signal that matrix is the same for all blocks; the ends, where weights are missing, have their own.
"""

from functools import lru_cache

import torch
from torch import Tensor

Weights = tuple[float, ...]  # odd in number, symmetric, of sum 1

_WIDEST = 128  # elements to one side from which on Fourier transforms are faster


def less_average(rows: Tensor, weights: Weights) -> Tensor:
    """``rows`` (..., length) less the weighted average around each element; near an end, the weights of
    the elements that exist, divided by their sum."""
    length, radius = rows.shape[-1], len(weights) // 2
    if radius > _WIDEST:
        return _less_wide_average(rows, weights)
    block = _block(radius)
    blocks = (length - 2 * radius) // block  # whole ones, a radius away from both ends
    if blocks < 1:
        return rows @ _dense(weights, length, 0, length, rows.dtype, rows.device)
    flat = rows.reshape(-1, length).contiguous()
    out = torch.empty_like(flat)
    for signal, filtered in zip(flat, out, strict=True):
        _less_average(signal, filtered, weights, block, blocks)
    return out.reshape(rows.shape)


def _less_average(signal: Tensor, out: Tensor, weights: Weights, block: int, blocks: int) -> None:
    length, radius = len(signal), len(weights) // 2
    own, next_ = _banded(weights, block, signal.dtype, signal.device)
    end = radius + blocks * block  # of what whole blocks give
    inside = out[radius:end].view(blocks, block)
    torch.mm(signal[: blocks * block].view(blocks, block), own, out=inside)
    inside.addmm_(signal.as_strided((blocks, 2 * radius), (block, 1), signal.storage_offset() + block), next_)
    start = _dense(weights, 2 * radius, 0, radius, signal.dtype, signal.device)
    torch.mv(start.T, signal[: 2 * radius], out=out[:radius])
    reach = length - end + radius
    rest = _dense(weights, reach, radius, reach, signal.dtype, signal.device)
    torch.mv(rest.T, signal[-reach:], out=out[end:])


def _less_wide_average(rows: Tensor, weights: Weights) -> Tensor:
    length, radius = rows.shape[-1], len(weights) // 2
    padded = 1 << (length + 2 * radius - 1).bit_length()  # room for what a circular convolution wraps around
    kernel = torch.fft.rfft(torch.tensor(weights, dtype=rows.dtype, device=rows.device), n=padded)

    def sums(x: Tensor) -> Tensor:
        whole: Tensor = torch.fft.irfft(torch.fft.rfft(x, n=padded) * kernel, n=padded)
        return whole[..., radius : radius + length]

    return rows - sums(rows) / sums(torch.ones(length, dtype=rows.dtype, device=rows.device))


def _block(radius: int) -> int:
    """Elements that a row of the matrix product gives: at least the band's own width."""
    return max(32, 1 << (2 * radius - 1).bit_length())


@lru_cache(maxsize=256)
def _dense(
    weights: Weights, length: int, start: int, end: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The matrix that takes a signal of ``length`` elements to its filtered ones ``start`` to ``end - 1``,
    (length, end - start), both ends of the signal being ends."""
    near = torch.arange(length)[:, None] - torch.arange(start, end)[None, :]
    radius = len(weights) // 2
    band = torch.tensor(weights, dtype=torch.float64)[(near + radius).clamp(0, 2 * radius)]
    band = torch.where(near.abs() <= radius, band, 0)
    average = band / band.sum(0)
    return ((near == 0).double() - average).to(dtype).to(device)


@lru_cache(maxsize=64)
def _banded(weights: Weights, block: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Two matrices, for the block that starts a radius earlier and for the start of the block after it."""
    radius = len(weights) // 2
    whole = _dense(weights, block + 2 * radius, radius, radius + block, dtype, device)
    return whole[:block].contiguous(), whole[block:].contiguous()
