"""The gate behind all arithmetic: can the next round begin with what this one led to?

Replies of finite numbers can still add up to infinity, and infinities to NaN. What is not finite here would
spoil every later round, so the strategy keeps the last round's result instead.
"""

from collections.abc import Iterator

import numpy as np

from common.params import Arrays, finite
from strategies.recipe import Outcome, RecipeState
from strategies.round import Round


def flaw(state: RecipeState, round_: Round, outcome: Outcome) -> str:
    """The first part of a round's result that is not finite, by name; empty if all of it is."""
    for what, arrays in _parts(state, round_, outcome):
        for name, x in arrays.items():
            if not finite(x):
                return f'{what} "{name}"'
    return ""


def _parts(state: RecipeState, round_: Round, outcome: Outcome) -> Iterator[tuple[str, Arrays]]:
    yield "parameter", outcome.model
    yield "buffer", outcome.buffers
    yield "the server optimiser's", dict(state.step)
    for slot, arrays in state.shared.items():
        # In the model's types, as nodes receive them: what is finite in float64 need not be there.
        yield f"{slot} of", {name: _cast(x, outcome.model[name].dtype) for name, x in arrays.items()}
    for client in round_.clients:
        yield f"{client}'s own", state.personal.models.get(client, {})
    yield "the weights of", {"the round": outcome.weights}


def _cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x.astype(dtype)
