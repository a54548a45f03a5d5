"""A ledger, sorted for those who read it: by round, by client, and by what went wrong."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from common.errors import DataError
from common.ledger import ClientRecord, DriftRecord, End, Flag, Header, Joined, NodeCard, Record, RoundRecord

UNENDED = "did not end"


@dataclass(frozen=True)
class RunView:
    """One run. Of two records for the same round (a resumed run repeats one) the later one counts."""

    header: Header
    nodes: tuple[NodeCard, ...]  # at the start and later ones, by name
    refused: tuple[Joined, ...]
    rounds: tuple[RoundRecord, ...]  # by number
    clients: tuple[ClientRecord, ...]  # by round, then name
    end: End | None  # None: the server was killed, or still runs
    drift: tuple[DriftRecord, ...] = ()  # by number
    site: str = ""  # the only one that is told of, or empty for all
    others: int = 0  # nodes that nothing is told of

    @property
    def numbers(self) -> tuple[int, ...]:
        """All rounds of which the ledger knows anything, unfinished ones too."""
        drifted = {record.round for record in self.drift}
        return tuple(sorted({r.round for r in self.rounds} | {c.round for c in self.clients} | drifted))

    @property
    def names(self) -> tuple[str, ...]:
        """All clients, nodes that never trained too; site-2 comes before site-10."""
        known = {record.client for record in self.clients} | {node.name for node in self.nodes}
        return tuple(sorted(known, key=natural))

    @property
    def status(self) -> str:
        """The outcome of the end line, or ``did not end``."""
        return self.end.status if self.end else UNENDED

    @property
    def reason(self) -> str:
        """Why the run ended as it did; empty if there is nothing to say."""
        if self.end:
            return self.end.reason
        after = f"after round {self.rounds[-1].round}" if self.rounds else "before the first round was over"
        return f"The ledger stops {after}: the server was killed, or the run still goes on."

    @property
    def seconds(self) -> float | None:
        """How long the run took, or had taken by the end of its last whole round."""
        if self.end:
            return self.end.seconds
        return self.rounds[-1].elapsed if self.rounds else None

    @property
    def measured(self) -> RoundRecord | None:
        """The last round in which the model was evaluated."""
        return next((r for r in reversed(self.rounds) if r.accuracy is not None or r.loss is not None), None)

    @property
    def accuracy(self) -> float | None:
        """Final accuracy, 0..1; of the last round that measured one if the run did not end."""
        if self.end and self.end.accuracy is not None:
            return self.end.accuracy
        return self.measured.accuracy if self.measured else None

    @property
    def loss(self) -> float | None:
        """Final loss, as for ``accuracy``."""
        if self.end and self.end.loss is not None:
            return self.end.loss
        return self.measured.loss if self.measured else None


@dataclass(frozen=True)
class Problem:
    """One thing that went wrong for the same clients and for the same reason, in one or more rounds."""

    rounds: tuple[int, ...]
    what: str  # a client's status, "refused", "model not moved" or "fallback"
    clients: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Flagged:
    """All flags that one test raised on one client. Advisory."""

    client: str
    test: str
    rounds: tuple[int, ...]
    strongest_round: int
    strongest: Flag


def view(records: Iterable[Record]) -> RunView:
    """Sort the records of one ledger. Raises DataError if they hold no header."""
    header: Header | None = None
    end: End | None = None
    nodes: dict[str, NodeCard] = {}
    refused: list[Joined] = []
    rounds: dict[int, RoundRecord] = {}
    clients: dict[tuple[int, str], ClientRecord] = {}
    drift: dict[int, DriftRecord] = {}
    for record in records:
        match record:
            case Header():
                header, end = record, None
                nodes |= {node.name: node for node in record.nodes}
            case Joined(node=node):
                if record.refused:
                    refused.append(record)
                elif node is not None:
                    nodes[node.name] = node
            case ClientRecord():
                clients[record.round, record.client] = record
            case RoundRecord():
                rounds[record.round] = record
            case DriftRecord():
                drift[record.round] = record
            case End():
                end = record
    if header is None:
        raise DataError("the ledger holds no header line: the run ended before it began")
    return RunView(
        header=header,
        nodes=tuple(sorted(nodes.values(), key=lambda node: natural(node.name))),
        refused=tuple(refused),
        rounds=tuple(rounds[number] for number in sorted(rounds)),
        clients=tuple(sorted(clients.values(), key=lambda record: (record.round, natural(record.client)))),
        end=end,
        drift=tuple(drift[number] for number in sorted(drift)),
    )


def problems(run: RunView) -> tuple[Problem, ...]:
    """What went wrong, in order of first appearance; equal events of several rounds are one problem."""
    clients: dict[tuple[int, str, str], list[str]] = defaultdict(list)
    for record in run.clients:
        if record.status != "accepted":
            clients[record.round, record.status, record.reason].append(record.client)
    rounds: dict[tuple[str, tuple[str, ...], str], list[int]] = defaultdict(list)
    for (number, what, reason), names in clients.items():
        rounds[what, tuple(names), reason].append(number)
    for done in run.rounds:
        if not done.moved or done.reason:
            what = "fallback" if done.moved else "model not moved"
            rounds[what, (), done.reason].append(done.round)
    for joined in run.refused:
        name = (joined.node.name,) if joined.node else ()
        rounds["refused", name, joined.refused].append(joined.round)
    found = (Problem(tuple(n), what, names, reason) for (what, names, reason), n in rounds.items())
    return tuple(sorted(found, key=lambda problem: problem.rounds[0]))


def flagged(run: RunView) -> tuple[Flagged, ...]:
    """The flags of the whole run, one entry for each client and test, most often flagged first."""
    raised: dict[tuple[str, str], list[tuple[int, Flag]]] = defaultdict(list)
    for record in run.clients:
        for flag in record.flags:
            raised[record.client, flag.test].append((record.round, flag))
    entries = (
        Flagged(client, test, tuple(number for number, _ in flags), *max(flags, key=_beyond))
        for (client, test), flags in raised.items()
    )
    return tuple(sorted(entries, key=lambda entry: (-len(entry.rounds), natural(entry.client))))


def _beyond(raised: tuple[int, Flag]) -> float:
    """How far a flag is beyond its threshold, on whichever side."""
    _, flag = raised
    return abs(flag.value - flag.threshold)


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key that counts: site-2 before site-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
