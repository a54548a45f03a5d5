"""Guards: which updates nobody can have learnt from data of its own.

Scores say how much an update is worth, and can be misled: pure noise has the entropy of the best update
there is. A guard looks at something else, outside the scores, and speaks of one round at a time. Four
tests, all on the same numbers: the model's three largest tensors, or evenly spaced elements of them.

==========  ===============================================================  =======================
test        what is flagged                                                  if
==========  ===============================================================  =======================
``empty``   an update far shorter than the others                            below 0.05 of a median
``replay``  one that is a mix of models that everybody has received           all but 0.001 of it
``copy``    one that brings what another one brings                          cosine above 0.99
``noise``   one that has no more in common with any other than chance gives  z below 5, the typical
                                                                             one above
==========  ===============================================================  =======================

Everybody has received the model as it is, as it was at the start, and in the last ten rounds. So all tests
but the first take the span of these out of each update: what is left, e_i, is what a node brings.

For ``noise`` each element of e_i is replaced by the root of its size, with its sign: else a few large ones,
such as those of the commonest words in a table of embeddings, decide alone. Were the signs drawn by lot,
whatever the sizes, the inner product of two such rows would have the mean 0 and the variance
sum_k |e_ik e_jk|. So z_i is the largest ratio of an absolute inner product with another to the root of that,
of the three tensors', and passes 5 by chance about once in a million pairs. Honest updates have a little of
everything in common; what they have with a negative sign is drift, and counts. Where all nodes have nearly
learnt their own rows, hardly anything may be left: nobody is flagged where the median of z is below 5, too.
Where updates lie in a subspace by construction (algorithm ``ssf``), z is taken down by the root of its share
of the dimensions.

An update that fails ``empty``, ``replay`` or ``noise`` is left out of the round if flags weigh: of the sum,
of medians and the like, of buffers, and of what algorithms keep on the server; what its node would have
remembered is not accepted either. Copies share the weight of one.

Tests and thresholds are ours, no paper's. A node that knows them can pass: by some genuine training, by a
move of more than ten rounds ago, or with a partner that sends partly the same noise. Noise that a site adds
for privacy looks like any other noise. So a flag asks somebody to look, and takes at most that one round.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.ledger import Flag
from common.params import Arrays
from strategies.round import Round, Vector

TENSORS = 3
MOST = 32_768  # elements of each that are compared
FEWEST = 10_000  # in the largest: with fewer, honest updates of very different data look like noise
ROUNDS = 10  # whose models are remembered, beside the first one

EMPTY, REPLAY, COPY, NOISE = TESTS = ("empty", "replay", "copy", "noise")

Trail = NDArray[np.generic]  # (k, n), parts of earlier models in the model's type
NO_TRAIL: Trail = np.zeros((0, 0))

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Sighting:
    """What the guards saw in a round."""

    weights: Vector  # (m,), on the simplex
    flags: Mapping[str, tuple[Flag, ...]] = field(default_factory=dict)  # of the clients that have some
    dropped: tuple[str, ...] = ()  # clients whose replies are left out of the round
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
    freedom: float = 1.0  # of each tensor's dimensions, the share that updates can have
    min_clients: int = 3  # fewer have no typical update

    def look(self, weights: Vector, round_: Round, trail: Trail = NO_TRAIL) -> Sighting:
        """The weights of one round after the tests, and their flags; ``trail`` (k, n) is of earlier models,
        as ``after`` keeps it.

        Empty updates and replays are nobody's peers in the tests after theirs, and copies are no peers of
        each other. Nobody is flagged among fewer than ``min_clients`` clients, and by ``noise`` nobody with
        fewer than ``min_clients - 1`` peers, nor anybody in a round whose typical update fails that test,
        which a note says. If flags weigh, all but ``copy`` drop a reply, unless nobody with a weight would be
        left.
        """
        names = round_.clients
        if len(names) < self.min_clients:
            return Sighting(weights)
        facts = _facts(round_, trail)
        empty: Mask = facts.parts < self.empty
        left = np.sqrt(np.diag(facts.together).clip(0.0))
        replay: Mask = ~empty & (left < self.replay)
        live = np.outer(~empty & ~replay, ~empty & ~replay) & ~np.eye(len(names), dtype=bool)
        likeness = np.where(live, _cosines(facts.together), -1.0)
        twins: Mask = likeness > self.copy
        copies, peers = twins.sum(axis=1), live & ~twins
        z = _coherence(facts, peers) * math.sqrt(self.freedom)
        needed = len(names) if self.unseen(round_.model) else self.min_clients - 1
        tested: Mask = peers.sum(axis=1) >= needed
        like_noise: Mask = tested & (z < self.noise)
        typical = float(np.median(z[tested])) if tested.any() else 0.0
        noise: Mask = like_noise & (typical >= self.noise)
        notes = (_UNTOLD.format(typical),) if like_noise.any() and not noise.any() else ()

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
        seen = _weighed(weights, factors, names, flags) if self.weigh else Sighting(weights, flags)
        return replace(seen, notes=(*notes, *seen.notes))

    def unseen(self, model: Arrays) -> str:
        """What the tests do not look for in a model of these parameters, in a sentence; empty if nothing."""
        free = int(self.freedom * max((x.size for x in model.values()), default=0))
        why = f"the guards do not look for noise: in the model's largest tensor {free:,} numbers are free"
        return "" if free >= self.fewest else f"{why}, and it takes {self.fewest:,}"

    def after(self, trail: Trail, round_: Round) -> Trail:
        """What is compared of the first model and of the last ones, (k, n); this round's stands last."""
        sent = _row(round_.model)
        return np.vstack([*trail[:1], *trail[1:][1 - ROUNDS :], sent])


@dataclass(frozen=True)
class _Facts:
    """What the tests look at. What is left of an update is that beside all that was received."""

    parts: Vector  # (m,), an update's length over the typical one
    together: Vector  # (m, m), inner products of what is left of the updates, whose length is 1
    own: tuple[Vector, ...]  # of the signed roots of each tensor's elements, (m, m)
    chance: tuple[Vector, ...]  # the standard deviations of those, were signs drawn by lot


def _facts(round_: Round, trail: Trail) -> _Facts:
    """One tensor after the other, so that the numbers of only one are in memory once more."""
    tensors = _tensors(round_.model)
    sizes, products, own, chance = [], [], [], []
    for name, block in zip(tensors, _blocks(round_.model), strict=True):
        lengths, left = _polar(np.stack([_part(reply.update[name]) for reply in round_.replies]))
        left = _beside(left, _received(_part(round_.model[name]), trail[:, block].astype(np.float64)))
        sizes.append(lengths)
        products.append(left @ left.T)
        sizes_left = np.abs(left)
        chance.append(np.sqrt(sizes_left @ sizes_left.T))
        roots = np.copysign(np.sqrt(sizes_left, out=sizes_left), left, out=left)
        own.append(roots @ roots.T)
    whole: Vector = np.hypot.reduce(sizes)
    shares = np.array(sizes) / np.where(whole > 0, whole, 1.0)
    together = np.einsum("ti,tj,tij->ij", shares, shares, np.array(products))
    return _Facts(whole / _typical(whole), together, tuple(own), tuple(chance))


def _typical(lengths: Vector) -> float:
    """The lower median of the lengths that are not zero; 1 if all are.

    The mean of the two in the middle, one of which is huge, would make everybody else's update empty.
    """
    there = lengths[lengths > 0]
    return float(np.quantile(there, 0.5, method="lower")) if len(there) else 1.0


_SHORT = "its update is {:.2g} of the round's typical length: it brings next to nothing"
_OLD = "its update is made of models that everybody has received, but for {:.1g} of its length"
_ALIKE = "its update brings what that of {} brings (cosine {:.4f}): one of them may be a copy"
_UNTOLD = "the guards cannot tell noise: the typical update has as little in common with others (z {:.1f})"
_LONELY = (
    "its update has no more in common with any other than chance gives (z {:.1f}): it may be noise, also "
    "such as a site adds for privacy"
)


def _weighed(
    weights: Vector, factors: Vector, names: Sequence[str], flags: Mapping[str, tuple[Flag, ...]]
) -> Sighting:
    """The weights times the factors, on the simplex again, and who is dropped.

    Where nobody with a weight passes, the tests tell nothing: all stay as they are, with a note.
    """
    if (factors == 1.0).all():  # not a bit changes
        return Sighting(weights, flags)
    total = (weights * factors).sum()
    if not total > 0:
        return Sighting(weights, flags, notes=("the guards flag everybody who has a weight, and take none",))
    dropped = tuple(name for name, factor in zip(names, factors, strict=True) if factor == 0)
    return Sighting(weights * factors / total, flags, dropped)


def _tensors(model: Arrays) -> list[str]:
    """The names of the largest tensors, the largest first; of equal ones the first in the model."""
    return sorted(model, key=lambda name: -model[name].size)[:TENSORS]


def _row(model: Arrays) -> Trail:
    """What is compared of a model, one tensor after the other, in its own type, (n,)."""
    return np.concatenate([_picked(model[name]) for name in _tensors(model)])


def _received(model: Vector, trail: Vector) -> Vector:
    """Directions whose span holds the model, the earlier ones and all moves between them, (k, n).

    Moves by themselves: as differences of nearly equal models they would be lost.
    """
    if not len(trail):
        return model[None]
    steps = np.diff(np.vstack([*trail[1:], model]), axis=0)
    return np.vstack([model, *(model - trail[:1]), *steps])


def _part(x: NDArray[np.generic]) -> Vector:
    """At most ``MOST`` evenly spaced elements, in float64."""
    return _picked(x).astype(np.float64)


def _picked(x: NDArray[np.generic]) -> NDArray[np.generic]:
    """Every so manieth element, an odd number: with an even one they would all be of a few columns."""
    return x.reshape(-1)[:: math.ceil(x.size / MOST) | 1]


def _blocks(model: Arrays) -> list[slice]:
    """Where in a row each tensor stands."""
    elements = [_picked(model[name]).size for name in _tensors(model)]
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


def _beside(directions: Vector, received: Vector) -> Vector:
    """The directions less their parts in the span of what was received, (m, n)."""
    _, basis = _polar(received)
    inverse = np.linalg.pinv(basis @ basis.T, hermitian=True)
    left: Vector = directions - (directions @ basis.T @ inverse) @ basis
    return left


def _coherence(facts: _Facts, peers: Mask) -> Vector:
    """Each client's z, (m,): its largest absolute inner product with a peer, in standard deviations of
    chance. 0 without peers."""
    z: Vector = np.zeros(len(peers))
    for products, chance in zip(facts.own, facts.chance, strict=True):
        ratios = np.abs(products) / np.where(chance > 0, chance, 1.0)
        z = np.maximum(z, np.where(peers, ratios, 0.0).max(axis=1))
    return z


def _cosines(products: Vector) -> Vector:
    """Cosines from inner products, (m, m); 0 with a vector of length 0."""
    lengths = np.sqrt(np.diag(products).clip(0.0))
    scale = np.outer(lengths, lengths)
    cosines: Vector = products / np.where(scale > 0, scale, 1.0)
    return cosines
