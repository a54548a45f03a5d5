"""What a local algorithm is: a rule that turns a gradient into the direction of a step."""

from dataclasses import dataclass

from common.params import Params


@dataclass(frozen=True)
class LocalContext:
    """What stays the same during one node's round."""

    anchor: Params  # the global model that the round started from
    lr: float


@dataclass(frozen=True)
class LocalRule:
    """FedAvg (McMahan et al., AISTATS 2017), and the interface of every other local algorithm.

    y <- y - eta g
    """

    def direction(self, g: Params, w: Params, ctx: LocalContext) -> Params:
        """The direction ``d`` of the step ``w - lr * d``, before clipping, weight decay and momentum.

        ``g`` is the data gradient at ``w``, filtered if the run filters. Neither is changed.
        """
        return g
