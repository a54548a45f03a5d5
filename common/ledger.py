"""The ledger of a run: one append-only JSON line for each thing that happened.

``ledger.jsonl`` begins with a header (resolved configuration, versions, model, nodes), then holds, for
each round, one line a node and one line for the round, and ends with an end line. Every line is written
whole and flushed, so that a killed server leaves everything up to its last full line. Scores, weights
and reasons all stand here: whatever a report shows is computed from this file alone.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from common.config import Value
from common.errors import DataError
from common.files import write_whole
from common.text import kebab

FORMAT = 1
LEDGER = "ledger.jsonl"  # in a run's folder
LOG_MARK = "specfed-ledger "  # before each line in a run's log, for those who follow from elsewhere

Status = Literal["accepted", "quarantined", "error", "missing"]
Outcome = Literal["completed", "completed-degraded", "failed", "stopped"]


class _Record(BaseModel):
    model_config = ConfigDict(
        alias_generator=kebab,
        validate_by_name=True,
        validate_by_alias=True,
        extra="ignore",
        frozen=True,
        ser_json_inf_nan="null",
    )


class ModelCard(_Record):
    """The model of a run."""

    name: str
    parameters: int
    tensors: int
    filtered_tensors: int  # how many of them the nodes' gradient filter changes
    head: str  # name of the head's weight
    head_shape: tuple[int, ...]


class NodeCard(_Record):
    """What a node said of itself when it joined."""

    name: str
    examples: int  # training rows, repeats included
    classes: int
    input_shape: tuple[int, ...]
    naming: str = ""  # hash of its classes' and columns' names in their order, if they have any
    fingerprint: str  # hash of the rows it trains on
    device: str
    versions: dict[str, str]


class Header(_Record):
    """The first line: what was run, on what."""

    kind: Literal["header"] = "header"
    format: int = FORMAT
    run_id: str
    folder: str
    time: str  # ISO 8601, UTC
    config: dict[str, Value]
    versions: dict[str, str]  # specfed, flwr, torch, numpy, python
    model: ModelCard
    nodes: tuple[NodeCard, ...]  # those present at the start, by name
    eval_fingerprint: str = ""  # of the server's test data, if it has any
    proxy_fingerprint: str = ""  # of the data that it learns weights on, if it has any


class Joined(_Record):
    """A node that came, came back, or was turned away after the start."""

    kind: Literal["joined"] = "joined"
    round: int
    node: NodeCard | None = None
    refused: str = ""  # the reason, with the node's name


class Flag(_Record):
    """One reason to look at a client. Advisory, never a verdict."""

    test: str  # "robust-z"
    value: float
    threshold: float
    text: str  # a plain sentence


class ClientRecord(_Record):
    """One client in one round. ``None`` means: not measured, or not for a reply of this status."""

    kind: Literal["client"] = "client"
    round: int
    client: str
    status: Status
    reason: str = ""
    examples: int | None = None
    steps: int | None = None
    train_loss: float | None = None  # mean over the local steps
    loss_before: float | None = None  # of the received model on the node's own validation rows
    accuracy_before: float | None = None
    seconds: float | None = None  # the node's own work
    update_norm: float | None = None
    signals: dict[str, float | None] = Field(default_factory=dict)  # "entropy", "alignment"
    score: float | None = None
    score_std: float | None = None  # square root of the Kalman variance
    weight: float | None = None
    flags: tuple[Flag, ...] = ()
    # Of the round's first local step, before the filter, if the node tells:
    energy_removed: tuple[float, ...] = ()  # share of the squared norm, 0..1, a filtered tensor
    band_energies: tuple[float, ...] = ()  # squared norm in each frequency band, over all tensors


class RoundRecord(_Record):
    """One round."""

    kind: Literal["round"] = "round"
    round: int
    rounds: int
    sampled: int
    accepted: int
    moved: bool  # False: the model stayed as it was, for ``reason``
    reason: str = (
        ""  # why it did not move, which fallback gave the weights, whose own scores are not believed
    )
    accuracy: float | None = None  # 0..1, of the new model; told by nodes, of the one before the round
    loss: float | None = None
    evaluated_on: Literal["server", "nodes", "none"] = "none"
    noise: dict[str, float | None] = Field(default_factory=dict)  # the filter's variance of each signal
    seconds: float
    elapsed: float  # since the run began


class LayerDrift(_Record):
    """How far the clients' gradients of one tensor are apart. ``None``: not defined for these clients."""

    name: str
    absolute: float | None = None  # mean distance to the clients' mean
    relative: float | None = None  # the same over the norm of that mean
    cosine: float | None = None  # mean over the pairs of clients
    filtered_relative: float | None = None  # both once more after the gradient filter, if it was tried here
    filtered_cosine: float | None = None


class DriftRecord(_Record):
    """How far one round's clients are apart, over frequencies and over layers.

    ``bands`` numbers, band 0 being the lowest, stand in ``dist`` and ``std`` (empty for fewer than two
    clients) and in ``energy``, the share of all squared norms (empty if all clients sent zeros).
    """

    kind: Literal["drift"] = "drift"
    round: int
    source: Literal["updates", "gradients"]  # trained minus received over steps and rate; local gradients
    filtered: bool  # whether what is compared has passed the gradient filter
    clients: int  # how many are compared
    dist: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    energy: tuple[float, ...] = ()
    layers: tuple[LayerDrift, ...] = ()
    left_out: tuple[str, ...] = ()  # tensors that are too short for the spectrum
    cka: float | None = None  # mean over pairs of local models, on the server's probe rows
    seconds: float  # that this took the server


class Suspect(_Record):
    """A client that the whole run gives reason to look at."""

    client: str
    text: str


class End(_Record):
    """The last line."""

    kind: Literal["end"] = "end"
    status: Outcome
    reason: str = ""
    error: str = ""  # class of the error that ended it, "" if none did
    rounds: int
    seconds: float
    accuracy: float | None = None
    loss: float | None = None
    suspects: tuple[Suspect, ...] = ()


Record = Annotated[
    Header | Joined | ClientRecord | RoundRecord | DriftRecord | End, Field(discriminator="kind")
]
_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


def parse(line: str) -> Record:
    """One line of a ledger as a record. Raises DataError if it is not one."""
    try:
        return _RECORD.validate_json(line)
    except ValidationError as error:
        raise DataError(f"not a ledger line ({error.errors()[0]['msg']}): {line[:80]!r}") from None


class LedgerWriter:
    """Appends records to a ledger, each one a line that is on its way to disk when ``write`` returns."""

    def __init__(self, path: Path) -> None:
        """Open ``path`` for appending; a torn last line, left by a killed server, is cut off first."""
        _cut_torn_line(path)
        self._file = path.open("ab", buffering=0)

    def write(self, record: Record) -> None:
        """Append one record. Raises OSError, and appends nothing, if there is no room for all of it."""
        line = record.model_dump_json(by_alias=True).encode() + b"\n"
        before = os.fstat(self._file.fileno()).st_size
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError:
            os.ftruncate(self._file.fileno(), before)
            raise

    def sync(self) -> None:
        """Flush to the disk itself."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush to the disk itself and close."""
        self.sync()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path) -> Iterator[Record]:
    """All records of a ledger in order. A last line without its newline is not a line yet.

    Raises DataError if the file is missing or a full line in it is not a record.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"no ledger at {path}: {error.strerror}") from None
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            yield parse(line.decode(errors="replace"))
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error}") from None


def until(records: Iterable[Record], round_: int) -> list[Record]:
    """The records without those of rounds after ``round_``, and without how the run ended."""
    return [r for r in records if not isinstance(r, End) and (isinstance(r, Header) or r.round <= round_)]


def rewind(path: Path, round_: int, config: Mapping[str, Value]) -> None:
    """Drop what a ledger says of rounds after ``round_``, and how it ended: a resumed run says it anew.

    The header tells from now on of the configuration ``config``, with which the run goes on.
    """
    kept = [
        r.model_copy(update={"config": dict(config)}) if isinstance(r, Header) else r
        for r in until(read(path), round_)
    ]
    write_whole(path, "".join(r.model_dump_json(by_alias=True) + "\n" for r in kept).encode())


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    whole = path.read_bytes()
    keep = whole.rfind(b"\n") + 1
    if keep < len(whole):
        with path.open("r+b") as file:
            file.truncate(keep)
