"""Subspaces of a model's parameters: what is sent when not all of an update is.

A *projector* maps one tensor to coordinates in an orthonormal basis (``down``, P) and back (``up``, P^T):
P P^T is the identity, P^T P an orthogonal projection. A ``Codec`` holds one for each tensor. Node and server
make the same one from the run's seed, so no basis ever travels.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from common.filters import low_bins
from common.params import Params
from common.seeding import stream, subset, uniforms

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


class Projector(Protocol):
    """An orthonormal basis of a subspace of one tensor's space. It and what it maps lie on one device."""

    def on(self, device: torch.device) -> "Projector":
        """The same on ``device``."""

    def down(self, x: Tensor) -> Tensor:
        """The coordinates of ``x``."""

    def up(self, z: Tensor) -> Tensor:
        """The tensor with these coordinates."""


@dataclass(frozen=True)
class Whole:
    """The whole space, in its natural basis."""

    def on(self, device: torch.device) -> Self:
        """Itself: it holds nothing."""
        return self

    def down(self, x: Tensor) -> Tensor:
        """``x``."""
        return x

    def up(self, z: Tensor) -> Tensor:
        """``z``."""
        return z


@dataclass(frozen=True)
class Coordinates:
    """Some elements of a tensor, by their places in the flattened one."""

    places: Tensor  # (r,), distinct
    shape: Shape

    def on(self, device: torch.device) -> Self:
        """The same on ``device``."""
        return replace(self, places=self.places.to(device))

    def down(self, x: Tensor) -> Tensor:
        """The elements, (r,)."""
        return x.reshape(-1)[self.places]

    def up(self, z: Tensor) -> Tensor:
        """The elements in their places, zeros elsewhere."""
        whole = z.new_zeros(math.prod(self.shape))
        return whole.index_copy(0, self.places, z).reshape(self.shape)


@dataclass(frozen=True)
class Rows:
    """``Q^T W`` for a tensor seen as a matrix ``W`` (rows, the rest): combinations of its rows."""

    q: Tensor  # (rows, r), float64, orthonormal columns
    shape: Shape

    def on(self, device: torch.device) -> Self:
        """The same on ``device``."""
        return replace(self, q=self.q.to(device))

    def down(self, x: Tensor) -> Tensor:
        """``Q^T W``, (r, the rest)."""
        return self.q.to(x.dtype).T @ x.reshape(self.shape[0], -1)

    def up(self, z: Tensor) -> Tensor:
        """``Q z``."""
        return (self.q.to(z.dtype) @ z).reshape(self.shape)


@dataclass(frozen=True)
class Columns:
    """``W Q`` for a tensor seen as a matrix ``W`` (rows, the rest): combinations of its columns."""

    q: Tensor  # (the rest, r), float64, orthonormal columns
    shape: Shape

    def on(self, device: torch.device) -> Self:
        """The same on ``device``."""
        return replace(self, q=self.q.to(device))

    def down(self, x: Tensor) -> Tensor:
        """``W Q``, (rows, r)."""
        return x.reshape(self.shape[0], -1) @ self.q.to(x.dtype)

    def up(self, z: Tensor) -> Tensor:
        """``z Q^T``."""
        return (z @ self.q.to(z.dtype).T).reshape(self.shape)


@dataclass(frozen=True)
class Bins:
    """Some bins of the real Fourier transform of the flattened tensor.

    A bin is two coordinates, the real and the imaginary part; the mean and, for an even length, the highest
    bin have a real part alone.
    """

    bins: Tensor  # (b,), ascending
    shape: Shape
    pairs: slice  # of the bins, those that have both parts

    @classmethod
    def of(cls, bins: Tensor, shape: Shape) -> Self:
        """The projector on ``bins``, of the CPU, of a tensor of this shape."""
        first, last = bins[0] == 0, 2 * bins[-1] == math.prod(shape)
        return cls(bins, shape, slice(int(first), len(bins) - int(last)))

    def on(self, device: torch.device) -> Self:
        """The same on ``device``."""
        return replace(self, bins=self.bins.to(device))

    def down(self, x: Tensor) -> Tensor:
        """Real parts, then imaginary parts, scaled so that lengths stay what they were."""
        spectrum = torch.fft.rfft(x.reshape(-1), norm="ortho")[self.bins]
        # Both halves of the spectrum hold a pair.
        spectrum[self.pairs] *= math.sqrt(2)
        return torch.cat([spectrum.real, spectrum.imag[self.pairs]])

    def up(self, z: Tensor) -> Tensor:
        """The tensor with these bins and no others."""
        length, count = math.prod(self.shape), len(self.bins)
        imaginary = z.new_zeros(count)
        imaginary[self.pairs] = z[count:]
        chosen = torch.complex(z[:count], imaginary)
        chosen[self.pairs] *= math.sqrt(0.5)
        spectrum = torch.zeros(length // 2 + 1, dtype=chosen.dtype, device=z.device)
        x: Tensor = torch.fft.irfft(spectrum.index_copy(0, self.bins, chosen), n=length, norm="ortho")
        return x.reshape(self.shape)


@dataclass(frozen=True)
class Codec:
    """A projector for each tensor, by name."""

    projectors: Mapping[str, Projector]

    def on(self, device: torch.device) -> "Codec":
        """The same for tensors on ``device``."""
        return Codec({name: projector.on(device) for name, projector in self.projectors.items()})

    def encode(self, params: Params) -> Params:
        """The coordinates of each tensor."""
        return {name: self.projectors[name].down(x) for name, x in params.items()}

    def decode(self, coordinates: Params) -> Params:
        """The tensors with these coordinates."""
        return {name: self.projectors[name].up(z) for name, z in coordinates.items()}

    def project(self, params: Params) -> Params:
        """The part of each tensor that lies in its subspace."""
        return self.decode(self.encode(params))


Make = Callable[[str, Shape], Projector]


def coordinates(rank: float, seed: int, epoch: int) -> Make:
    """A random share ``rank`` of each tensor's elements, at least one."""

    def make(name: str, shape: Shape) -> Projector:
        length = math.prod(shape)
        places = subset(stream(seed, "coordinates", epoch, name), _share(rank, length), length)
        return Coordinates(torch.from_numpy(places), shape)

    return make


def matrices(rank: float, seed: int, epoch: int) -> Make:
    """Random combinations of the rows or columns of each weight, whichever are fewer; vectors stay whole."""

    def make(name: str, shape: Shape) -> Projector:
        if len(shape) < 2:
            return Whole()
        rows, rest = shape[0], math.prod(shape[1:])
        short = min(rows, rest)
        size = (short, _share(rank, short))
        uniform = torch.from_numpy(uniforms(stream(seed, "matrices", epoch, name), math.prod(size)))
        q, r = torch.linalg.qr(torch.special.ndtri(uniform).reshape(size))
        q = q * torch.sign(torch.diagonal(r))  # a sign is the libraries' choice; this one is ours
        return Rows(q, shape) if rows <= rest else Columns(q, shape)

    return make


def bins(rank: float, seed: int, epoch: int, ratio: float) -> Make:
    """A random share ``rank`` of the frequency bins that an FFT filter of this ratio leaves."""

    def make(name: str, shape: Shape) -> Projector:
        length = math.prod(shape)
        low, count = low_bins(ratio, length), length // 2 + 1
        chosen = subset(stream(seed, "bins", epoch, name), _share(rank, count - low), count - low)
        return Bins.of(torch.from_numpy(chosen + low), shape)

    return make


def kept_bins(ratio: float, filtered: set[str]) -> Make:
    """All bins that the FFT filter leaves of the tensors it filters; other tensors stay whole."""

    def make(name: str, shape: Shape) -> Projector:
        length = math.prod(shape)
        low = low_bins(ratio, length) if name in filtered else 0
        return Bins.of(torch.arange(low, length // 2 + 1), shape) if low else Whole()

    return make


def codec(make: Make, shapes: Shapes) -> Codec:
    """A codec for tensors of these shapes."""
    return Codec({name: make(name, tuple(shape)) for name, shape in shapes.items()})


def _share(rank: float, of: int) -> int:
    return max(1, round(rank * of))
