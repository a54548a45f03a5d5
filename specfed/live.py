"""What a person sees of a run: its ledger, followed and told in lines that read well in any terminal."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from common.config import Value
from common.errors import DataError
from common.ledger import LOG_MARK, ClientRecord, End, Header, Joined, NodeCard, Record, RoundRecord, parse
from common.traits import filter_width, has_scores, is_scored
from server_app.report.contribution import Contribution, contribution_table

POLL_SECONDS = 0.2
_RECENT = 5  # rounds that the remaining time is judged by
_INDENT = " " * 7
_LEVEL = re.compile(rf"(?:^|\x1b\[\d+m)INFO [\d:, -]*(?:\x1b\[0m)?: +(?={LOG_MARK})")  # as Flower prints it

_WEIGHTINGS = {
    "uniform": "the same for all nodes",
    "examples": "by number of examples",
    "spectralfed": "SpectralFed",
    "spectralfuse": "SpectralFuse",
    "shapfed": "ShapFed",
    "cgsv": "CGSV",
    "feddisco": "FedDisco",
    "fedawa": "FedAWA",
    "fedlaw": "FedLAW",
}
_FILTERS = {"fft": "FFT", "lap-d": "LAP-D", "gd": "GD"}


# --- following ---------------------------------------------------------------------------------------


def follow(path: Path, finished: Callable[[], bool]) -> Iterator[Record]:
    """The records of a ledger as they are written, from the first, until the end record.

    Also ends when ``finished`` says that nothing more will come and all full lines are read. The file
    need not be there yet. ``finished`` is asked whenever there is nothing new, several times a second.
    """
    rest = b""
    offset = 0
    while True:
        done = finished()  # before reading: what was written until now is then read
        if path.exists():
            with path.open("rb") as file:
                file.seek(offset)
                new = file.read()
            offset += len(new)
            *lines, rest = (rest + new).split(b"\n")
            for line in lines:
                record = _record(line.decode("utf-8", errors="replace"))
                if record is not None:
                    yield record
                if isinstance(record, End):
                    return
        if done:
            return
        time.sleep(POLL_SECONDS)


def records_in(log: Iterable[str]) -> Iterator[Record]:
    """The ledger records that a run printed into its log, where a message of its own begins with one."""
    for line in log:
        level = _LEVEL.search(line)
        record = record_of(line[level.end() :].rstrip()) if level else None
        if record is not None:
            yield record


def record_of(message: str) -> Record | None:
    """The record that a log message tells; None for any other message, whatever it quotes."""
    return _record(message.removeprefix(LOG_MARK)) if message.startswith(LOG_MARK) else None


def _record(line: str) -> Record | None:
    try:
        return parse(line)
    except DataError:
        return None  # a line that cannot be told is no reason to stop watching, and with that the run


# --- telling -----------------------------------------------------------------------------------------


def tell(records: Iterable[Record], width: int) -> Iterator[str]:
    """A run in lines of text: what it is, a row each round, whatever went wrong, and what came of it.

    ``width`` is in characters. A table row shows as many nodes as fit; the report shows them all.
    """
    table: _Table | None = None
    told: list[Record] = []
    clients: dict[str, ClientRecord] = {}
    for record in records:
        told.append(record)
        match record:
            case Header():
                table = _Table.fitting([node.name for node in record.nodes], scores(record.config), width)
                yield from _opening(record)
                yield ""
                yield table.heading()
            case Joined():
                yield _INDENT + _joined(record)
            case ClientRecord():
                clients[record.client] = record
                if record.status != "accepted":
                    yield f"{_INDENT}{record.client} {record.status}: {record.reason}"
            case RoundRecord():
                if table is None:  # the beginning of the log is lost
                    scored = any(client.score is not None for client in clients.values())
                    table = _Table.fitting(sorted(clients), scored, width)
                    yield table.heading()
                yield table.row(record, clients, _time_left(told))
                if record.reason:
                    effect = "" if record.moved else "the model stays as it was: "
                    yield f"{_INDENT}{effect}{record.reason}"
                clients = {}
            case End():
                yield ""
                yield from _ending(record, told, width)


class _Table:
    """The layout of the rounds' table: which nodes have a column, and whether scores are shown."""

    def __init__(self, names: Sequence[str], scores: bool = False) -> None:
        self.names, self.scores = names, scores

    @classmethod
    def fitting(cls, names: Sequence[str], scores: bool, width: int) -> "_Table":
        """With the first of ``names``, as many as fit into ``width`` characters."""
        count = len(names)
        while count and len(cls(names[:count], scores).heading()) > width:
            count -= 1
        return cls(names[:count], scores)

    def heading(self) -> str:
        cells = "".join(name.rjust(self._width(name)) for name in self.names)
        return f"{'round':>6}{'accuracy':>9}{'loss':>7}{'replies':>8}{cells}{'left':>8}"

    def row(self, record: RoundRecord, clients: Mapping[str, ClientRecord], left: str) -> str:
        of = f"{record.round}/{record.rounds}"
        accuracy = "-" if record.accuracy is None else f"{100 * record.accuracy:.1f} %"
        loss = "-" if record.loss is None else f"{record.loss:.3f}"
        replies = f"{record.accepted}/{record.sampled}"
        cells = "".join(
            f" {self._content(clients.get(name))}".rjust(self._width(name)) for name in self.names
        )
        return f"{of:>6}{accuracy:>9}{loss:>7}{replies:>8}{cells}{left:>8}"

    def _width(self, name: str) -> int:
        return max(len(name), len(".20/.31") if self.scores else len(".20")) + 1

    def _content(self, client: ClientRecord | None) -> str:
        if client is None or client.weight is None:
            return "-"
        weight = short(client.weight)
        return f"{weight}/{short(client.score)}" if self.scores else weight


def scores(config: Mapping[str, Value]) -> bool:
    """Whether a run of this configuration has scores of its nodes."""
    return has_scores(config.get("contribution"), config.get("weighting"))


def _opening(header: Header) -> Iterator[str]:
    config, model = header.config, header.model
    yield f"run     {header.run_id} · {_nodes(header.nodes)}"
    heads = " x ".join(str(n) for n in model.head_shape)
    yield (
        f'model   {model.name}, {_amount(model.parameters)} parameters · head "{model.head}" ({heads}) · '
        f"{_filter(config, model.filtered_tensors, model.tensors)}"
    )
    shown = " (the table shows weight/score)" if scores(config) else ""
    yield f"weights {_weighting(config)}{shown}"


def _nodes(nodes: Sequence[NodeCard]) -> str:
    if not nodes:
        return "no nodes yet"
    classes = max(node.classes for node in nodes)
    shown = ", ".join(f"{node.name} {node.examples:,}" for node in nodes[:8])
    more = f" and {len(nodes) - 8} more" if len(nodes) > 8 else ""
    return f"training examples: {shown}{more} · {classes} classes"


def _filter(config: Mapping[str, Value], filtered: int, tensors: int) -> str:
    name = str(config.get("filter", "none"))
    if name == "none":
        return "gradients unfiltered"
    return f"{_FILTERS.get(name, name)} filter {filter_width(config)} on {filtered} of {tensors} tensors"


def _weighting(config: Mapping[str, Value]) -> str:
    name = str(config.get("weighting"))
    words = _WEIGHTINGS.get(name, name)
    if config.get("contribution") == "weight" or not is_scored(name):
        return words
    base = str(config.get("base-weighting"))
    mode = "only observed" if config.get("contribution") == "observe" else "off"
    return f"{_WEIGHTINGS.get(base, base)}; {words} {mode}"


def _joined(record: Joined) -> str:
    if record.refused:
        return f"turned away: {record.refused}"
    node = record.node
    return "a node joined" if node is None else f"{node.name} joined with {node.examples:,} examples"


def _time_left(told: Sequence[Record]) -> str:
    rounds = [record for record in told if isinstance(record, RoundRecord)][-_RECENT:]
    to_go = rounds[-1].rounds - rounds[-1].round
    return duration(to_go * fmean(record.seconds for record in rounds)) if to_go > 0 else "-"


def _ending(end: End, told: Sequence[Record], width: int) -> Iterator[str]:
    if end.status in ("failed", "stopped"):
        parts = [f"{end.status} after {end.rounds} rounds and {duration(end.seconds)}"]
    else:
        parts = [f"{end.status} in {duration(end.seconds)}"]
    if end.accuracy is not None:
        parts.append(f"accuracy {100 * end.accuracy:.1f} %")
    header = next((record for record in told if isinstance(record, Header)), None)
    if header is not None:
        parts.append(f"every number: {header.folder}/report.html")
    yield " · ".join(parts)
    if end.reason:
        yield f"{'reason':<15}{end.reason}"
    if header is not None:
        yield from _contribution(contribution_table(told), width)
        if not end.suspects and scores(header.config):
            yield f"{'advisory':<15}no client stands out for long enough to be called a suspect"
    for label, suspect in zip(_labels("advisory"), end.suspects, strict=False):
        yield f"{label:<15}{suspect.client}: {suspect.text}"


def _contribution(rows: Sequence[Contribution], width: int) -> Iterator[str]:
    """The score of each client, highest first, as many in a line as fit."""
    cells = [f"{row.client} {_score(row.score, row.std)}" for row in rows if row.score is not None]
    size = max((len(cell) for cell in cells), default=0) + 3
    in_line = max(1, (width - 15) // size)
    for label, first in zip(_labels("contribution"), range(0, len(cells), in_line), strict=False):
        line = "".join(cell.ljust(size) for cell in cells[first : first + in_line])
        yield f"{label:<15}{line}".rstrip()


def _score(score: float, std: float | None) -> str:
    return short(score) if std is None else f"{short(score)} ± {short(std)}"


def _labels(first: str) -> Iterator[str]:
    yield first
    while True:
        yield ""


def short(value: float | None) -> str:
    """Two decimals without the leading zero, one from 1 on: ``.20``, ``-.05``, ``1.3``; ``-`` for none."""
    if value is None:
        return "-"
    text = f"{value:.2f}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else f"{value:.1f}"


def duration(seconds: float) -> str:
    """Seconds in words that fit a table: ``4 s``, ``1m 05s``, ``2h 10m``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def _amount(number: int) -> str:
    return f"{number / 1e6:.2f} M" if number >= 10_000 else f"{number:,}"
