"""Guards: which updates nobody can have learnt from data of its own.

Scores say how much an update is worth, and can be misled: pure noise has the entropy of the best update
there is. A guard looks at something else, outside the scores, and speaks of one round at a time. Four
tests, all on the same numbers: the model's three largest tensors, or evenly spaced elements of them.

==========  ===============================================================  =======================
test        what is flagged                                                  if
==========  ===============================================================  =======================
``empty``   an update far shorter than the others                            below 0.05 of a median
``replay``  one that is a mix of the model's own last moves                  all but 0.001 of it
``copy``    one that brings what another one brings                          cosine above 0.99
``noise``   one that has no more in common with any other than chance gives  z below 5
==========  ===============================================================  =======================

The model's last three moves were sent to everybody, so all but the first take their span out of each
update: what is left, e_i, is what a node brings. The cosine of two vectors of n independent numbers
has a variance of 1 / n, so z_i = sqrt(n) max_j |cos(e_i, e_j)|, the largest of the tensors' three, passes 5
by chance about once in a million pairs. Honest updates have a little of everything in common, though hardly
anything in one tensor of one round now and then; what they have with a negative sign is drift, and counts.

Tests and thresholds are ours, no paper's. A node that knows them can pass, and needs no data for it: with
the model itself or a move of more than three rounds ago, which honest updates have something in common with;
with noise that is as uneven as the last move's squares, where cosines vary more than by 1 / n; with a partner
that sends partly the same noise. Updates that travel in a small subspace (algorithm ``ssf``) have so much in
common by chance. Noise that a site adds for privacy looks like any other noise. So a flag asks somebody to
look, and takes at most the weight of that round: what ignores weights, such as a median or SCAFFOLD's control
variates, takes flagged updates as it takes others.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.ledger import Flag
from common.params import Arrays
from strategies.round import Round, Vector

TENSORS = 3
MOST = 32_768  # elements of each that are compared
FEWEST = 10_000  # in the largest: with fewer, honest updates of very different data look like noise
MOVES = 3  # of the model

EMPTY, REPLAY, COPY, NOISE = TESTS = ("empty", "replay", "copy", "noise")

NO_MOVES: Vector = np.zeros((0, 0))

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Sighting:
    """What the guards saw in a round."""

    weights: Vector  # (m,), on the simplex
    flags: Mapping[str, tuple[Flag, ...]] = field(default_factory=dict)  # of the clients that have some
    notes: tuple[str, ...] = ()


class _Test(NamedTuple):
    name: str
    hits: Mask  # (m,)
    values: Vector  # (m,)
    threshold: float
    says: Callable[[int], str]

    def flag(self, i: int) -> Flag:
        return Flag(test=self.name, value=float(self.values[i]), threshold=self.threshold, text=self.says(i))


@dataclass(frozen=True)
class Guards:
    """The four tests with their thresholds."""

    weigh: bool = False  # whether flags take weight, or only tell
    empty: float = 0.05
    replay: float = 1e-3
    copy: float = 0.99
    noise: float = 5.0
    fewest: int = FEWEST  # elements that ``noise`` takes
    min_clients: int = 3  # fewer have no typical update

    def look(self, weights: Vector, round_: Round, moves: Vector = NO_MOVES) -> Sighting:
        """The weights of one round after the tests, and their flags; ``moves`` (k, n) are the model's last
        ones, as ``after`` keeps them.

        Empty updates and replays are nobody's peers in the tests after theirs, and copies are no peers of
        each other. Nobody is flagged among fewer than ``min_clients`` clients, and by ``noise`` nobody with
        fewer than ``min_clients - 1`` peers. If flags weigh, they take the whole weight, and of ``copy`` so
        much that those who are alike share the weight of one.
        """
        names = round_.clients
        if len(names) < self.min_clients:
            return Sighting(weights)
        facts = _facts(round_, moves)
        empty: Mask = facts.parts < self.empty
        left = np.sqrt(np.diag(facts.together).clip(0.0))
        replay: Mask = ~empty & (left < self.replay)
        live = np.outer(~empty & ~replay, ~empty & ~replay) & ~np.eye(len(names), dtype=bool)
        likeness = np.where(live, _cosines(facts.together), -1.0)
        twins: Mask = likeness > self.copy
        copies, peers = twins.sum(axis=1), live & ~twins
        z = _coherence(facts.own, facts.elements, peers)
        needed = self.min_clients - 1 if facts.elements[0] >= self.fewest else len(names)
        noise: Mask = (peers.sum(axis=1) >= needed) & (z < self.noise)

        def alike(i: int) -> str:
            return _ALIKE.format(names[int(likeness[i].argmax())], likeness[i].max())

        tests = (
            _Test(EMPTY, empty, facts.parts, self.empty, lambda i: _SHORT.format(facts.parts[i])),
            _Test(REPLAY, replay, left, self.replay, lambda i: _OLD.format(left[i])),
            _Test(COPY, copies > 0, likeness.max(axis=1), self.copy, alike),
            _Test(NOISE, noise, z, self.noise, lambda i: _LONELY.format(z[i])),
        )
        found = {name: tuple(t.flag(i) for t in tests if t.hits[i]) for i, name in enumerate(names)}
        flags = {name: some for name, some in found.items() if some}
        factors = ~(empty | replay | noise) / (1.0 + copies)
        weighed, notes = _weighed(weights, factors) if self.weigh else (weights, ())
        return Sighting(weighed, flags, notes)

    def unseen(self, model: Arrays) -> str:
        """What the tests do not look for in a model of these parameters, in a sentence; empty if nothing."""
        largest = max((x.size for x in model.values()), default=0)
        why = (
            f"the guards do not look for noise: the model's largest tensor has {largest:,} numbers, and it "
            f"takes {self.fewest:,}"
        )
        return why if largest < self.fewest else ""

    def after(self, moves: Vector, before: Arrays, model: Arrays) -> Vector:
        """The model's last moves, with the one from ``before`` to ``model``, (k, n), the latest last."""
        tensors = _tensors(before)
        move = np.concatenate([_part(model[name]) - _part(before[name]) for name in tensors])
        return np.vstack([*moves, move])[-MOVES:]


@dataclass(frozen=True)
class _Facts:
    """What the tests look at."""

    parts: Vector  # (m,), an update's length over the typical one
    together: Vector  # (m, m), inner products of what is left of the updates, whose length is 1
    own: tuple[Vector, ...]  # the same for each tensor by itself
    elements: tuple[int, ...]  # of each tensor how many are compared


def _facts(round_: Round, moves: Vector) -> _Facts:
    """One tensor after the other, so that the numbers of only one are in memory once more."""
    tensors = _tensors(round_.model)
    elements = tuple(_part(round_.model[name]).size for name in tensors)
    sizes, own = [], []
    for name, block in zip(tensors, _blocks(elements), strict=True):
        lengths, directions = _polar(np.stack([_part(reply.update[name]) for reply in round_.replies]))
        sizes.append(lengths)
        own.append(_beside(directions, moves[:, block]))
    whole: Vector = np.hypot.reduce(sizes)
    shares = np.array(sizes) / np.where(whole > 0, whole, 1.0)
    together = np.einsum("ti,tj,tij->ij", shares, shares, np.array(own))
    return _Facts(whole / _typical(whole), together, tuple(own), elements)


def _typical(lengths: Vector) -> float:
    """The lower median of the lengths that are not zero; 1 if all are.

    The mean of the two in the middle, one of which is huge, would make everybody else's update empty.
    """
    there = lengths[lengths > 0]
    return float(np.quantile(there, 0.5, method="lower")) if len(there) else 1.0


_SHORT = "its update is {:.2g} of the round's typical length: it brings next to nothing"
_OLD = "its update repeats the model's own last moves, but for {:.1g} of its length"
_ALIKE = "its update brings what that of {} brings (cosine {:.4f}): one of them may be a copy"
_LONELY = (
    "its update has no more in common with any other than chance gives (z {:.1f}): it may be noise, also "
    "such as a site adds for privacy"
)


def _weighed(weights: Vector, factors: Vector) -> tuple[Vector, tuple[str, ...]]:
    """The weights times the factors, on the simplex again.

    Where nobody with a weight passes, the tests tell nothing: the weights stay as they are, with a note.
    """
    if (factors == 1.0).all():  # not a bit changes
        return weights, ()
    total = (weights * factors).sum()
    if not total > 0:
        return weights, ("the guards flag everybody who has a weight, and take none",)
    return weights * factors / total, ()


def _tensors(model: Arrays) -> list[str]:
    """The names of the largest tensors, the largest first; of equal ones the first in the model."""
    return sorted(model, key=lambda name: -model[name].size)[:TENSORS]


def _part(x: NDArray[np.generic]) -> Vector:
    """At most ``MOST`` evenly spaced elements, in float64."""
    step = max(1, math.ceil(x.size / MOST))
    return x.reshape(-1)[::step].astype(np.float64)


def _blocks(elements: Sequence[int]) -> list[slice]:
    """Where each tensor stands in a row of all of them."""
    ends = np.cumsum(elements).tolist()
    return [slice(end - n, end) for end, n in zip(ends, elements, strict=True)]


def _polar(rows: Vector) -> tuple[Vector, Vector]:
    """Lengths, (m,), and directions of length 1, (m, n); a row of zeros has none, and stays zeros.

    Squares are taken of numbers of at most 1, so that none overflows and none vanishes.
    """
    peaks = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
    scaled = rows / np.where(peaks > 0, peaks, 1.0)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    scaled /= np.where(lengths > 0, lengths, 1.0)
    return (lengths * peaks)[:, 0], scaled


def _beside(directions: Vector, moves: Vector) -> Vector:
    """Inner products of the directions less their parts in the span of the moves, (m, m)."""
    products: Vector = directions @ directions.T
    if not len(moves):
        return products
    _, basis = _polar(moves)
    shadows = directions @ basis.T
    inverse = np.linalg.pinv(basis @ basis.T, hermitian=True)
    rest: Vector = products - shadows @ inverse @ shadows.T
    return rest


def _coherence(own: Sequence[Vector], elements: Sequence[int], peers: Mask) -> Vector:
    """Each client's z: its largest absolute cosine with a peer, in standard deviations of chance, (m,).

    0 without peers.
    """
    z: Vector = np.zeros(len(peers))
    for products, n in zip(own, elements, strict=True):
        cosines = np.where(peers, np.abs(_cosines(products)), 0.0)
        z = np.maximum(z, math.sqrt(n) * cosines.max(axis=1))
    return z


def _cosines(products: Vector) -> Vector:
    """Cosines from inner products, (m, m); 0 with a vector of length 0."""
    lengths = np.sqrt(np.diag(products).clip(0.0))
    scale = np.outer(lengths, lengths)
    cosines: Vector = products / np.where(scale > 0, scale, 1.0)
    return cosines
