"""Cosine gradient Shapley value: how far each whole update points where the cohort's goes (Xu et al., 2021).

    u_i = Gamma D_i / (|D_i| + 1e-7)      u = sum_j w_j u_j      phi_i = cos(u_i, u)

Gamma, a constant of each data set in the paper's code, is the round's typical update norm here. It does not
matter to phi. ``w_j`` is the previous round's weight, equal in the first round; the paper's code begins
with the sizes that clients claim. In spite of its name no coalitions are formed.
"""

import numpy as np

from common.params import norm
from strategies.aggregate import weighted_sum
from strategies.rescale import equal_norms
from strategies.round import Round, Vector
from strategies.signals import Reading
from strategies.signals.norms import norms


def cosine(round_: Round, weights: Vector) -> Reading:
    """Cosine of each update with the weighted sum of the scaled updates, -1 to 1.

    0 for a client that did not move, and for all if the sum is zero.
    """
    scaled = equal_norms(round_)
    total = dict(weighted_sum(scaled, weights))
    lengths = norms(scaled) * norm(dict(total))
    dots = np.zeros(len(scaled.replies))
    for i, reply in enumerate(scaled.replies):
        dots[i] = sum(
            float(np.multiply(reply.update[name], x, dtype=np.float64).sum()) for name, x in total.items()
        )
    cosines: Vector = np.where(lengths > 0, dots / np.where(lengths > 0, lengths, 1.0), 0.0)
    return Reading(cosines.clip(-1.0, 1.0))
