"""Signals: one round's replies -> one number a client. Pure, in float64."""

from collections.abc import Callable
from dataclasses import dataclass

from strategies.round import Round, Vector


@dataclass(frozen=True)
class Reading:
    """A signal's values, (m,). NaN: nothing can be said of this client. With ``unavailable`` set, of none."""

    values: Vector
    unavailable: str = ""  # the reason, in one sentence
    note: str = ""  # what was done to the values, if anything was


Signal = Callable[[Round, Vector], Reading]  # the second argument: the clients' previous weights, (m,)
