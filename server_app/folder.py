"""The run folder: everything a run leaves behind, in one place.

runs/<run-id>/config.json          the resolved configuration
              ledger.jsonl         what happened, line by line
              checkpoints/         the last rounds, each whole
              model.safetensors    the latest model: parameters and buffers
              tensorboard/         events
              report.html          the report, with report.json and report.csv
"""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import TypeAdapter, ValidationError

from common import checkpoint
from common.config import RunConfig
from common.errors import ConfigError, DataError, RunFailed
from common.files import alone, write_whole
from common.ledger import (
    LEDGER,
    ClientRecord,
    End,
    Header,
    Joined,
    LedgerWriter,
    NodeCard,
    Record,
    RoundRecord,
    read,
    rewind,
    until,
)
from common.params import Arrays, fitted, flat, nested
from common.text import to_json
from server_app.evaluation import Score
from strategies.flower import StrategyState
from strategies.free_rider import History
from strategies.guards import NO_TRAIL
from strategies.recipe import RecipeState
from strategies.reward import Personal
from strategies.scorers import ScorerState

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

RUNS, RUN_ID = "SPECFED_RUNS", "SPECFED_RUN_ID"  # set by whoever starts the server
CONFIG, CHECKPOINTS, MODEL = "config.json", "checkpoints", "model.safetensors"
LOCK = ".lock"  # held by the process that writes the folder
TRAIL = "trail"  # of earlier models, in a checkpoint


@dataclass(frozen=True)
class Past:
    """What a run that goes on has done: its latest checkpoint, and what its ledger says up to there."""

    round: int
    model: Arrays
    state: StrategyState
    elapsed: float  # seconds
    records: tuple[Record, ...]

    @property
    def header(self) -> Header:
        """The run as it began."""
        return next(record for record in self.records if isinstance(record, Header))

    @property
    def nodes(self) -> dict[str, NodeCard]:
        """What each node that took part said of itself last, by name."""
        later = [record.node for record in self.records if isinstance(record, Joined) and record.node]
        return {node.name: node for node in (*self.header.nodes, *later)}

    @property
    def moved(self) -> bool:
        """Whether any round moved the model."""
        return any(record.moved for record in self.records if isinstance(record, RoundRecord))

    @property
    def score(self) -> Score:
        """The last round's."""
        rounds = [record for record in self.records if isinstance(record, RoundRecord)]
        return Score(rounds[-1].accuracy, rounds[-1].loss, rounds[-1].evaluated_on) if rounds else Score()

    @property
    def testers(self) -> set[str]:
        """The nodes that tested the model on rows of their own."""
        told = [record for record in self.records if isinstance(record, ClientRecord)]
        return {r.client for r in told if None not in (r.accuracy_before, r.loss_before)}


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds beside arrays, as JSON."""

    scorer: ScorerState
    weights: dict[str, float]
    parts: dict[str, float]  # of a node's own model
    members: tuple[str, ...]
    history: History
    ranks: dict[str, int]
    accepted: dict[str, int]  # the round of each node's last accepted reply
    era: int
    elapsed: float  # seconds that the run had taken


class RunFolder:
    """Writes a run's files. Names, not formats: those are in ``common.ledger`` and ``common.checkpoint``."""

    def __init__(
        self, path: Path, ledger: LedgerWriter, events: "SummaryWriter | None", past: Past | None = None
    ) -> None:
        self.path, self._ledger, self._events = path, ledger, events
        self.past = past  # of a run that goes on

    def save_round(
        self, round_: int, arrays: Arrays, state: StrategyState, elapsed: float, keep: int
    ) -> None:
        """Checkpoint a round, and make its model the run's model. Raises RunFailed if there is no room."""
        recipe = state.recipe
        saved = Saved(
            scorer=recipe.scorer,
            weights=dict(recipe.weights),
            parts=dict(recipe.personal.parts),
            members=recipe.members,
            history=dict(state.history),
            ranks=dict(state.ranks),
            accepted=dict(state.accepted),
            era=state.era,
            elapsed=elapsed,
        )
        whole = checkpoint.Checkpoint(
            round_,
            arrays,
            state.buffers,
            asdict(saved),
            dict(recipe.step),
            flat(recipe.personal.models),
            flat({slot: dict(arrays) for slot, arrays in recipe.shared.items()}),
            {TRAIL: recipe.trail} if len(recipe.trail) else {},
        )
        with _writing(self.path):
            self._ledger.sync()  # no checkpoint of a round that the ledger may lose
            checkpoint.save(self.path / CHECKPOINTS, whole, keep)
            checkpoint.save_arrays(self.path / MODEL, {**arrays, **state.buffers})

    def write(self, record: Record) -> None:
        """Append a record to the ledger. Raises RunFailed if that cannot be written."""
        with _writing(self.path):
            self._ledger.write(record)

    def record(self, round_: RoundRecord) -> None:
        """Write a round's numbers as TensorBoard events."""
        values = {"accuracy": round_.accuracy, "loss": round_.loss, "accepted": float(round_.accepted)}
        for name, value in values.items():
            if value is not None:
                self._event(name, value, round_.round)

    def record_values(self, round_: int, name: str, values: dict[str, float]) -> None:
        """Write one number for each of several things, clients or bands, as TensorBoard events."""
        for key, value in values.items():
            self._event(f"{name}/{key}", value, round_)

    def _event(self, name: str, value: float, round_: int) -> None:
        if self._events is not None:
            with _writing(self.path):
                self._events.add_scalar(name, value, round_)


@contextmanager
def open_folder(config: RunConfig, flower_run: int) -> Iterator[RunFolder]:
    """The folder of a new run, or of the run to resume, open for writing.

    Raises ConfigError if it cannot be made, exists already, belongs to a run that is going on, or holds none
    that goes on like this.
    """
    root = Path(os.environ.get(RUNS, "runs")).resolve()
    path = root / (config.resume or new_run_id(config.run_name, flower_run))
    if config.resume:
        _require_past(path)
    else:
        _make(path, config)
    with alone(path / LOCK, f"run {path.name} is going on; 'specfed status' lists it"):
        past = None
        if config.resume:
            past = _past(path, config)
            _go_back(path, past, config)
        events = _events(path, past) if config.tensorboard else None
        with LedgerWriter(path / LEDGER) as ledger:
            try:
                yield RunFolder(path, ledger, events, past)
            finally:
                if events is not None:
                    with _writing(path):
                        events.close()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A full disk ends a run with a sentence; what is there stays whole, and the run can go on from it."""
    try:
        yield
    except OSError as error:
        raise RunFailed(f"the run folder {path} cannot be written: {error.strerror}") from None


def _make(path: Path, config: RunConfig) -> None:
    try:
        path.mkdir(parents=True)
        _write_config(path, config)
    except FileExistsError:
        raise ConfigError(f"the run folder {path} exists already") from None
    except OSError as error:
        raise _unwritable(path, error) from None


def _require_past(path: Path) -> None:
    if not (path / LEDGER).is_file():
        raise ConfigError(f'no run "{path.name}" to resume in {path.parent}')


def _past(path: Path, config: RunConfig) -> Past:
    """What the run in ``path`` has done, if it can go on with ``config``. Only reads.

    Raises ConfigError if it cannot, and DataError if what it left cannot be read.
    """
    run = config.resume
    if not checkpoint.finished(path / CHECKPOINTS):
        raise ConfigError(f"run {run} has no checkpoint to go on from; start it anew")
    _require_same(path, config)
    latest, state, elapsed = load_state(path)
    records = list(read(path / LEDGER))
    if not any(isinstance(record, Header) for record in records):
        raise DataError(f"the ledger of run {run} does not tell how it began; start it anew")
    end = records[-1]
    ended = isinstance(end, End) and end.status in ("completed", "completed-degraded")
    fewest = latest.round + ended
    if config.rounds < fewest:
        raise ConfigError(
            f"run {run} has {'finished after' if ended else 'done'} {latest.round} rounds; "
            f"to go on it takes rounds={fewest} or more; got {config.rounds}"
        )
    kept = tuple(until(records, latest.round))
    return Past(latest.round, latest.model, state, elapsed, kept)


def _require_same(path: Path, config: RunConfig) -> None:
    """Raise ConfigError unless the configuration is the run's own, but for what may change."""
    changes = config.changes(RunConfig.saved(path / CONFIG))
    if changes:
        told = "; ".join(
            f"{key}: stored {json.dumps(old)}, got {json.dumps(new)}" for key, (old, new) in changes.items()
        )
        raise ConfigError(
            f"run {config.resume} goes on with its own configuration only; {told}. It is in {path / CONFIG}: "
            f"'specfed run config.json resume={config.resume}' takes that file"
        )


def _go_back(path: Path, past: Past, config: RunConfig) -> None:
    """Put the run's files back to where its latest checkpoint was whole."""
    goes_on = config.model_copy(update={"resume": "", "run_name": RunConfig.saved(path / CONFIG).run_name})
    try:
        _write_config(path, goes_on)
        rewind(path / LEDGER, past.round, goes_on.as_dict())
        checkpoint.save_arrays(path / MODEL, {**past.model, **past.state.buffers})
    except OSError as error:
        raise _unwritable(path, error) from None


def _write_config(path: Path, config: RunConfig) -> None:
    write_whole(path / CONFIG, to_json(config.as_dict()).encode())


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"the run folder {path} cannot be written: {error.strerror}")


def new_run_id(name: str, flower_run: int) -> str:
    """``2026-12-01-NAME-7f3a``: the day, the run's name, and the end of Flower's run id."""
    given = os.environ.get(RUN_ID)
    if given:
        return given
    mark = f"{flower_run:04x}"[-4:] if flower_run > 0xFFFF else secrets.token_hex(2)
    return f"{datetime.now(UTC):%Y-%m-%d}-{name or 'run'}-{mark}"


def load_state(path: Path) -> tuple[checkpoint.Checkpoint, StrategyState, float]:
    """The latest checkpoint in a run folder, the strategy's state, and how many seconds the run had taken."""
    latest = checkpoint.load_latest(path / CHECKPOINTS)
    try:
        saved = TypeAdapter(Saved).validate_python(latest.state)
    except ValidationError as error:
        raise DataError(f"the checkpoint in {path} does not hold a strategy's state: {error}") from None
    step = {name: np.asarray(x, dtype=np.float64) for name, x in latest.optimizer.items()}
    shared = {
        slot: {name: np.asarray(x, dtype=np.float64) for name, x in xs.items()}
        for slot, xs in nested(latest.shared).items()
    }
    personal = Personal(nested(latest.personal), saved.parts)
    trail = latest.trail.get(TRAIL, NO_TRAIL)
    recipe = RecipeState(saved.scorer, saved.weights, step, personal, shared, saved.members, trail)
    state = StrategyState(latest.buffers, recipe, saved.history, saved.accepted, saved.era, saved.ranks)
    return latest, state, saved.elapsed


def fit(past: Past, arrays: Arrays, buffers: Arrays) -> tuple[Arrays, StrategyState]:
    """A past's parameters and state with all tensors in the order of the model's own ``arrays`` and
    ``buffers``, as they were before they were saved.

    Raises DataError if they do not fit the model.
    """
    recipe, place = past.state.recipe, "the checkpoint"
    model = fitted(past.model, arrays, place)
    models = {node: fitted(own, arrays, place) for node, own in recipe.personal.models.items()}
    shared = {slot: {name: xs[name] for name in arrays} for slot, xs in recipe.shared.items()}
    recipe = replace(recipe, personal=replace(recipe.personal, models=models), shared=shared)
    state = replace(past.state, buffers=fitted(past.state.buffers, buffers, place), recipe=recipe)
    return model, state


def _events(path: Path, past: Past | None) -> "SummaryWriter":
    """What is written from now on; rounds that are done again are shown once."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(path / "tensorboard"), purge_step=past.round + 1 if past else None)
