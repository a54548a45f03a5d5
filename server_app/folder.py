"""The run folder: everything a run leaves behind, in one place.

runs/<run-id>/config.json          the resolved configuration
              ledger.jsonl         what happened, line by line
              checkpoints/         the last rounds, each whole
              model.safetensors    the latest model: parameters and buffers
              tensorboard/         events
              report.html          the report, with report.json and report.csv
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter

from common import checkpoint
from common.config import RunConfig
from common.errors import ConfigError, DataError
from common.ledger import LedgerWriter, RoundRecord, rewind, to_json
from common.params import Arrays, fitted, flat, nested
from strategies.flower import StrategyState
from strategies.free_rider import History
from strategies.recipe import RecipeState
from strategies.reward import Personal
from strategies.scorers import ScorerState

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

RUNS, RUN_ID = "SPECFED_RUNS", "SPECFED_RUN_ID"  # set by whoever starts the server


class RunFolder:
    """Writes a run's files. Names, not formats: those are in ``common.ledger`` and ``common.checkpoint``."""

    def __init__(self, path: Path, ledger: LedgerWriter, events: "SummaryWriter | None") -> None:
        self.path, self.ledger, self._events = path, ledger, events

    def save_round(
        self, round_: int, arrays: Arrays, state: StrategyState, clock: dict[str, Any], keep: int
    ) -> None:
        """Checkpoint a round, and make its model the run's model."""
        personal = state.recipe.personal
        recipe = {
            "scorer": asdict(state.recipe.scorer),
            "weights": dict(state.recipe.weights),
            "parts": dict(personal.parts),
            "members": list(state.recipe.members),
        }
        models = flat(personal.models)
        saved = {
            "recipe": recipe,
            "history": dict(state.history),
            "memory": {"accepted": dict(state.accepted), "era": state.era},
            "clock": clock,
        }
        shared = flat({slot: dict(arrays) for slot, arrays in state.recipe.shared.items()})
        whole = checkpoint.Checkpoint(
            round_, arrays, state.buffers, saved, dict(state.recipe.step), models, shared
        )
        checkpoint.save(self.path / "checkpoints", whole, keep)
        checkpoint.save_arrays(self.path / "model.safetensors", {**arrays, **state.buffers})

    def record(self, round_: RoundRecord) -> None:
        """Write a round's numbers as TensorBoard events."""
        if self._events is None:
            return
        values = {"accuracy": round_.accuracy, "loss": round_.loss, "accepted": float(round_.accepted)}
        for name, value in values.items():
            if value is not None:
                self._events.add_scalar(name, value, round_.round)

    def record_values(self, round_: int, name: str, values: dict[str, float]) -> None:
        """Write one number for each of several things, clients or bands, as TensorBoard events."""
        if self._events is not None:
            for key, value in values.items():
                self._events.add_scalar(f"{name}/{key}", value, round_)


@contextmanager
def open_folder(config: RunConfig, flower_run: int) -> Iterator[RunFolder]:
    """The folder of a new run, or of the run to resume, open for writing.

    Raises ConfigError if it cannot be made, exists already, or is not there to resume.
    """
    root = Path(os.environ.get(RUNS, "runs")).resolve()
    path = root / (config.resume or new_run_id(config.run_name, flower_run))
    if config.resume and not (path / "ledger.jsonl").is_file():
        raise ConfigError(f'no run "{config.resume}" to resume in {root}')
    try:
        path.mkdir(parents=True, exist_ok=bool(config.resume))
        (path / "config.json").write_text(to_json(config.as_dict()), encoding="utf-8")
    except FileExistsError:
        raise ConfigError(f"the run folder {path} exists already") from None
    except OSError as error:
        raise ConfigError(f"the run folder {path} cannot be written: {error.strerror}") from None
    if config.resume:
        rewind(path / "ledger.jsonl", checkpoint.load_latest(path / "checkpoints").round)
    events = _events(path) if config.tensorboard else None
    with LedgerWriter(path / "ledger.jsonl") as ledger:
        try:
            yield RunFolder(path, ledger, events)
        finally:
            if events is not None:
                events.close()


def new_run_id(name: str, flower_run: int) -> str:
    """``2026-12-01-NAME-7f3a``: the day, the run's name, and the end of Flower's run id."""
    given = os.environ.get(RUN_ID)
    if given:
        return given
    mark = f"{flower_run:04x}"[-4:] if flower_run > 0xFFFF else secrets.token_hex(2)
    return f"{datetime.now(UTC):%Y-%m-%d}-{name or 'run'}-{mark}"


def load_state(path: Path) -> tuple[checkpoint.Checkpoint, StrategyState]:
    """The latest checkpoint of a run folder and the strategy's state in it."""
    latest = checkpoint.load_latest(path / "checkpoints")
    try:
        saved = latest.state["recipe"]
        scorer = TypeAdapter(ScorerState).validate_python(saved["scorer"])
        weights = TypeAdapter(dict[str, float]).validate_python(saved["weights"])
        parts = TypeAdapter(dict[str, float]).validate_python(saved["parts"])
        members = TypeAdapter(list[str]).validate_python(saved["members"])
        history = TypeAdapter(History).validate_python(latest.state["history"])
        accepted = TypeAdapter(dict[str, int]).validate_python(latest.state["memory"]["accepted"])
        era = TypeAdapter(int).validate_python(latest.state["memory"]["era"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the checkpoint in {path} does not hold a strategy's state: {error}") from None
    step = {name: np.asarray(x, dtype=np.float64) for name, x in latest.optimizer.items()}
    shared = {
        slot: {name: np.asarray(x, dtype=np.float64) for name, x in xs.items()}
        for slot, xs in nested(latest.shared).items()
    }
    personal = Personal(nested(latest.personal), parts)
    recipe = RecipeState(scorer, weights, step, personal, shared, tuple(members))
    return latest, StrategyState(latest.buffers, recipe, history, accepted, era)


def fit(
    saved: checkpoint.Checkpoint, state: StrategyState, arrays: Arrays, buffers: Arrays
) -> tuple[Arrays, StrategyState]:
    """A checkpoint's parameters, and the strategy's state in it, with all tensors in the order of the model's
    own ``arrays`` and ``buffers``, as they were before they were saved.

    Raises DataError if they do not fit the model.
    """
    model = fitted(saved.model, arrays, "the checkpoint")
    recipe = state.recipe
    models = {node: fitted(own, arrays, "the checkpoint") for node, own in recipe.personal.models.items()}
    shared = {slot: {name: xs[name] for name in arrays} for slot, xs in recipe.shared.items()}
    recipe = replace(recipe, personal=replace(recipe.personal, models=models), shared=shared)
    return model, replace(state, buffers=fitted(state.buffers, buffers, "the checkpoint"), recipe=recipe)


def _events(path: Path) -> "SummaryWriter":
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(path / "tensorboard"))
