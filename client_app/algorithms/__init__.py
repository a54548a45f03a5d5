"""The local algorithms by name. One paper, one file; a new one is a file and a line here."""

from collections.abc import Callable

from client_app.algorithms.fedprox import FedProx
from client_app.algorithms.rule import LocalRule
from common.config import RunConfig

ALGORITHMS: dict[str, Callable[[RunConfig], LocalRule]] = {
    "fedavg": lambda config: LocalRule(),
    "fedprox": lambda config: FedProx(config.prox_mu),
}
