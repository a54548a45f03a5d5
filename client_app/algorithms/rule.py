"""What a local algorithm is made of: where to look, which way to step, what to filter.

An ``Algorithm`` is one value for each of three independent questions. An *ascent* says where a step's
gradient is taken (at the model itself, or a little way off, as SAM does). A *rule* turns that gradient
into the direction of the step and keeps what a node remembers between rounds. *Sites* say which of these
are filtered. Most papers answer one question, and their file here holds that answer alone.

*Slots* are named sets of tensors of the model's shape. The server's come with the model (``broadcast``), a
node's own stay on the node (``memory``), and some go back beside the update (``report``). A slot that has not
been set yet stands for zeros.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from common.filters import keep
from common.params import Params, ParamsFilter

Slots = Mapping[str, Params]


@dataclass(frozen=True)
class LocalContext:
    """What stays the same during one node's round, but for ``memory``, which some rules renew each step."""

    anchor: Params  # the global model that the round started from
    lr: float
    broadcast: Slots = field(default_factory=dict)
    memory: Slots = field(default_factory=dict)
    counts: Tensor | None = None  # (classes,), the node's training rows of each class

    def received(self, slot: str) -> Params:
        """A slot of the server's; zeros if it sent none."""
        return _or_zeros(self.broadcast, slot, self.anchor)

    def own(self, slot: str) -> Params:
        """A slot of the node's memory; zeros if there is none yet."""
        return _or_zeros(self.memory, slot, self.anchor)


@dataclass(frozen=True)
class Finish:
    """What a round leaves: new values of slots of the node's memory, and slots for the server."""

    memory: Slots = field(default_factory=dict)
    report: Slots = field(default_factory=dict)


@dataclass(frozen=True)
class LocalRule:
    """FedAvg (McMahan et al., AISTATS 2017), and the interface of every other rule.

    y <- y - eta g
    """

    remembers: ClassVar[bool] = False  # whether ``finish`` gives memory
    decays: ClassVar[bool] = False  # whether ``direction`` holds the weight decay already

    def begin(self, gradient: Callable[[], Params], ctx: LocalContext) -> Slots:
        """Slots to add to the memory for this round. ``gradient()`` is the filtered one of all rows at once,
        at the anchor: one more pass over the data."""
        return {}

    def direction(self, g: Params, w: Params, ctx: LocalContext) -> Params:
        """The direction ``d`` of the step ``w - lr * d``, before clipping, weight decay and momentum.

        ``g`` is the data gradient, filtered if the run filters. Neither is changed.
        """
        return g

    def finish(self, w: Params, steps: int, ctx: LocalContext) -> Finish:
        """Close the round, which trained ``w`` in ``steps`` steps."""
        return Finish()


@dataclass(frozen=True)
class Ascent:
    """Where a step's gradient is taken: at ``w`` plus an offset. This one stays at ``w``."""

    remembers: ClassVar[bool] = False
    blind: ClassVar[bool] = True  # the offset needs no gradient at w, so a step takes one pass, not two

    def offset(self, g: Params, w: Params, ctx: LocalContext) -> Params | None:
        """The offset; None for none. ``g`` is the gradient at ``w``, empty for an ascent that is blind."""
        return None

    def blend(self, g: Params, ahead: Params) -> Params:
        """The data gradient, from the one at ``w`` and the one at the offset."""
        return ahead

    def after_step(self, offset: Params | None, direction: Params, ctx: LocalContext) -> Slots:
        """Slots of the memory that are renewed after a step."""
        return {}

    def finish(self, ctx: LocalContext) -> Finish:
        """Close the round."""
        return Finish()


Loss = Callable[[Tensor, Tensor, LocalContext], Tensor]


def cross_entropy(logits: Tensor, y: Tensor, ctx: LocalContext) -> Tensor:
    """Mean cross-entropy of a batch, in nats."""
    return nn.functional.cross_entropy(logits, y)


@dataclass(frozen=True)
class Sites:
    """What is filtered, and with what.

    ``gradient`` sees the data gradient alone, before a rule's momentum, proximal or control terms: that is
    SpecGradFilter. ``perturbation`` sees the offset of an ascent: that is FedFFT.
    """

    gradient: ParamsFilter = keep  # what a step is made from
    ascent: ParamsFilter = keep  # the gradient that an offset is made from
    perturbation: ParamsFilter = keep  # the offset itself
    sent: ParamsFilter = keep  # the update, once a round


@dataclass(frozen=True)
class Algorithm:
    """A local algorithm: a rule, an ascent, a loss and filters. The default is FedAvg."""

    rule: LocalRule = LocalRule()
    ascent: Ascent = Ascent()
    loss: Loss = cross_entropy
    sites: Sites = Sites()

    @property
    def remembers(self) -> bool:
        """Whether a node keeps something from one of its rounds to the next."""
        return self.rule.remembers or self.ascent.remembers

    def finish(self, w: Params, steps: int, ctx: LocalContext) -> Finish:
        """What the round leaves, the rule's and the ascent's."""
        one, other = self.rule.finish(w, steps, ctx), self.ascent.finish(ctx)
        return Finish({**one.memory, **other.memory}, {**one.report, **other.report})


def _or_zeros(slots: Slots, slot: str, like: Params) -> Params:
    found = slots.get(slot)
    return {name: torch.zeros_like(x) for name, x in like.items()} if found is None else found
