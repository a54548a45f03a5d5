"""Who might be riding for free: a robust z-score of the contribution shares, with persistence.

The contribution paper (App. C) maps the shares from the simplex to real space and flags outliers of
(x - median) / MAD. It leaves the map, the scale, the threshold and the persistence open. Ours: the
logarithm, MAD scaled to a standard deviation, z below -3.5, a share below half of an equal one, and both
in four of the last five rounds that the client took part in, among at least five clients. A run can set
the first two. Even so a small
or class-poor honest client can be lowest all the time: a flag asks somebody to look, and never bans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from common.ledger import Flag
from strategies.round import Vector

SMALLEST_SHARE = 1e-6
MAD_OF_NORMAL = 0.6745  # median absolute deviation of a standard normal variable
MEAN_TO_STD = 1.2533  # standard deviation of a normal variable over its mean absolute deviation

History = Mapping[str, tuple[bool, ...]]  # client -> was it an outlier, in its last rounds, latest last


def robust_z(shares: Vector) -> Vector:
    """Robust z-scores of the logarithms of shares on the simplex, (m,) -> (m,).

    0 for the median client. When more than half of the shares are equal the mean absolute deviation
    takes the place of the MAD; when all are equal every z is 0.
    """
    logs = np.log(np.maximum(shares, SMALLEST_SHARE))
    centred = logs - np.median(logs)
    scale = np.median(np.abs(centred)) / MAD_OF_NORMAL
    if scale < 1e-12:
        scale = np.abs(centred).mean() * MEAN_TO_STD
    return np.zeros_like(centred) if scale < 1e-12 else centred / scale


@dataclass(frozen=True)
class FreeRiderTest:
    """The rule's thresholds."""

    z: float = -3.5
    below_equal: float = 0.5  # and a share below this part of an equal one
    rounds: int = 4  # in so many
    of_last: int = 5  # of the last rounds taken part in
    min_clients: int = 5  # fewer clients make no outlier

    def look(
        self, history: History, clients: Sequence[str], shares: Vector | None
    ) -> tuple[History, dict[str, Flag]]:
        """One round: the longer history and the flags of the clients that the rule holds for now.

        A round without shares, or with too few clients, leaves the history as it is and flags nobody.
        """
        if shares is None or len(clients) < self.min_clients:
            return history, {}
        z = robust_z(shares)
        out = (z < self.z) & (shares < self.below_equal / len(clients))
        longer = {
            client: (*history.get(client, ()), bool(hit))[-self.of_last :]
            for client, hit in zip(clients, out, strict=True)
        }
        flags = {
            client: self._flag(float(z[i]), float(shares[i]), longer[client])
            for i, client in enumerate(clients)
            if sum(longer[client]) >= self.rounds
        }
        return {**history, **longer}, flags

    def _flag(self, z: float, share: float, recent: tuple[bool, ...]) -> Flag:
        text = (
            f"contribution share {share:.3f}, far below the others (robust z {z:.1f}) "
            f"in {sum(recent)} of its last {len(recent)} rounds"
        )
        return Flag(test="robust-z", value=z, threshold=self.z, text=text)


DEFAULT_TEST = FreeRiderTest()
