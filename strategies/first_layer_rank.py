"""Who trained on fewer examples than it claims: the rank of the first dense layer's update.

Each example that passes a dense first layer adds an outer product with its own fixed input to the layer's
gradient. However many epochs and steps a node takes, its update of that layer therefore has a rank of at
most its number of distinct examples. A node that repeats ten rows a hundred times is found by this, though
the update of its head may look like anybody's.

What keeps it true: a momentum that starts at zero, clipping and FedProx add nothing but combinations of the
same inputs. What ends it: weight decay adds a multiple of the whole weight, mixed precision adds rounding
that is not small, a convolution sees many patches of one example and has few columns.

A low rank alone proves nothing: rows that the model has learnt give next to no gradient, so that ranks fall
with the rounds. So a client's highest rank so far counts as well as that of the round, each against the
cohort's.

Measured on digits and ``mlp4`` (first layer 200 x 64), five nodes, the last one a free-rider with ten
distinct rows (nine after its validation split) that claims as many as the others have; 20 rounds, three
seeds, learning rate 0.05. Ratio is a client's highest rank so far over the smaller of its claim and the
cohort's median of those; a flag takes one below 0.5.

=========  ======================  ===========  ===============  ============  =================
Dirichlet  nodes train with        free-rider   highest ratio    honest        lowest ratio
=========  ======================  ===========  ===============  ============  =================
0.1        no filter               9            0.18             37 to 55      0.76
0.1        fft                     16           0.30             47 to 60      0.87
0.1        fft, momentum, 2 ep.    16 to 17     0.30             46 to 60      0.87
0.3        no filter               8 to 9       0.18             49 to 56      0.92
0.3        fft                     15 to 16     0.29             55 to 61      0.95
0.3        fft, momentum, 2 ep.    15 to 16     0.28             55 to 61      0.93
1.0        no filter               9            0.17             51 to 57      0.96
1.0        fft                     16           0.28             55 to 61      0.93
1.0        fft, momentum, 2 ep.    16           0.27             57 to 61      0.97
=========  ======================  ===========  ===============  ============  =================

A free-rider was flagged in 526 of its 540 turns, and in all of the first six rounds; an honest node in none
of 2,160. With the rank of the round alone, honest nodes with three epochs and momentum were flagged in 23 of
450 turns. On 5,000 images of CIFAR-10 (first layer 200 x 3072), six rounds: free-riders 9 without filter and
15 to 20 with it, a ratio of at most 0.10; honest nodes 154 to 200, a ratio of at least 0.77. The fft filter
mixes neighbouring rows of the flattened weight and so adds to a rank. A node that adds noise to its update
passes the test (the guards look for that), and so does one with enough data of its own. A flag asks somebody
to look; it bans nobody.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.config import RunConfig
from common.ledger import Flag
from common.models import Head
from common.params import Arrays
from common.traits import has_scores
from strategies.round import Reply, Round

RELATIVE = 1e-3  # a singular value below this part of the largest one counts as rounding
Ranks = Mapping[str, int]  # client -> rank
WIDEST = 2048  # of the weight's shorter side: a wider one would cost more than the rest of the round


def numeric_rank(matrix: NDArray[np.generic]) -> int:
    """How many singular values of a matrix exceed 1e-3 of the largest one; 0 for a zero matrix."""
    m = np.asarray(matrix, dtype=np.float64)
    peak = np.abs(m).max(initial=0.0)
    if peak == 0:
        return 0
    short = (m if m.shape[0] <= m.shape[1] else m.T) / peak  # squares of tiny updates stay in range
    squares = np.linalg.eigvalsh(short @ short.T)
    return int((squares > RELATIVE**2 * squares[-1]).sum())


@dataclass(frozen=True)
class RankTest:
    """The test on one layer, with its thresholds. With ``unavailable`` set it flags nobody."""

    layer: str = ""  # name of the first dense layer's weight
    unavailable: str = ""  # the reason, in one sentence
    below: float = 0.5  # a flag for less than this part of what both its claim and its peers give to expect
    min_clients: int = 3  # fewer have no typical rank

    def look(self, best: Ranks, round_: Round) -> tuple[Ranks, dict[str, Flag]]:
        """One round: the highest ranks so far, and the clients whose rank fits neither their example count
        nor the cohort, in this round and at its best.

        A rank proves that there are so many examples, and a low one proves nothing: a node whose rows the
        model has learnt has a low rank, too. So one that was high once, whenever it was, clears a client.
        """
        if self.unavailable or len(round_.replies) < self.min_clients:
            return best, {}
        now = {reply.client: numeric_rank(reply.update[self.layer]) for reply in round_.replies}
        highest = {client: max(rank, best.get(client, 0)) for client, rank in now.items()}
        limits, bests = self._limits(round_, now), self._limits(round_, highest)
        flags = {
            reply.client: _flag(reply, highest, bests[reply.client])
            for reply in round_.replies
            if now[reply.client] < limits[reply.client] and highest[reply.client] < bests[reply.client]
        }
        return {**best, **highest}, flags

    def _limits(self, round_: Round, ranks: Ranks) -> dict[str, float]:
        typical = float(np.median([ranks[client] for client in round_.clients]))
        return {reply.client: self.below * min(reply.examples, typical) for reply in round_.replies}


NO_RANK_TEST = RankTest(unavailable="nobody named a layer")


def first_layer_rank(config: RunConfig, model: Arrays, head: Head) -> RankTest:
    """The test for a run of this configuration on a model with these parameters, in the model's order."""
    layer = next((name for name, w in model.items() if w.ndim >= 2), head.weight)
    reasons: dict[str, bool] = {
        "this run scores nobody": not has_scores(config.contribution, config.weighting),
        "the model has no layer before its head": layer == head.weight,
        f'the first weight, "{layer}", is not that of a dense layer': model[layer].ndim != 2,
        f'the first weight, "{layer}", is wider than {WIDEST}': min(model[layer].shape[:2]) > WIDEST,
        "weight decay adds a multiple of the whole weight to every update": config.weight_decay > 0,
        f"{config.algorithm} adds more than a node's own gradients": not config.traits.in_span,
        "the rounding of mixed precision hides a rank": config.amp != "off",
    }
    why = next((reason for reason, holds in reasons.items() if holds), "")
    return RankTest(layer, f"the first-layer rank test is off: {why}" if why else "")


def _flag(reply: Reply, highest: Ranks, limit: float) -> Flag:
    rank, typical = highest[reply.client], float(np.median([*highest.values()]))
    text = (
        f"its first layer's updates have rank {rank} at most, those of its peers {typical:g}; a node that "
        f"trains on N distinct examples can reach at most about N, and it claims {reply.examples}"
    )
    return Flag(test="first-layer-rank", value=rank, threshold=limit, text=text)
