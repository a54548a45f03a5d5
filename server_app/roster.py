"""Who is there: nodes by their stable names, and whether their data fit together."""

import logging
import re
import time
from dataclasses import dataclass

from flwr.serverapp import Grid

from common.errors import DataError, RunFailed
from common.ledger import Joined, NodeCard
from common.messages import (
    CARD,
    CONFIG,
    HELLO,
    REASON,
    REFUSED,
    ConfigRecord,
    Message,
    RecordDict,
    read_card,
)
from common.text import one_line
from strategies.flower import UNAVAILABLE

log = logging.getLogger("flwr")

_RAISED = re.compile(r"<class '[\w.]+'>:<'(.*)'>", re.DOTALL)  # an error before our handlers
PAUSE = 0.5  # seconds between two looks at the list of nodes


@dataclass(frozen=True)
class Answer:
    """A node's answer to hello: its card, or why it has none."""

    card: NodeCard | None = None
    problem: str = ""


class Roster:
    """The nodes of a run. A node is known by its name, whatever id Flower gives it.

    A node that comes back under its name takes its place again. A second node under a name that is in
    use is refused, and so is one whose data have another shape or number of classes than the run's, and
    one that gives itself another name than the one that its key is enrolled under. A refused node is told
    why, and may try again once it has been away, or once the name that it was refused for is free.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout  # seconds to wait for nodes, and for an answer to hello
        self.cards: dict[str, NodeCard] = {}  # by name; all that ever belonged to the run
        self.news: list[Joined] = []  # since they were last taken
        self._ids: dict[str, int] = {}  # name -> node id
        self._refused: dict[int, str] = {}  # node id -> reason
        self._barred: set[int] = set()  # ids of refused nodes that have not been away since
        self._queued: dict[int, str] = {}  # of them, those whose name was in use -> that name
        self._greeted: dict[str, int] = {}  # id of an unanswered hello -> node id

    def gather(self, grid: Grid, min_nodes: int) -> tuple[NodeCard, ...]:
        """Wait until ``min_nodes`` nodes have said hello; their cards by name.

        Raises RunFailed when time is up, and DataError when the first nodes' data do not fit together;
        both say what is wrong with which node.
        """
        deadline = time.monotonic() + self.timeout
        while True:
            present = self.look(grid, 0)
            self._check_data()
            late = time.monotonic() >= deadline
            if len(present) >= min_nodes and (late or not self._greeted):
                return tuple(self.cards[name] for name in sorted(present))
            if late:
                raise RunFailed(self._too_few(len(present), min_nodes))
            time.sleep(PAUSE)

    def look(self, grid: Grid, round_: int) -> dict[str, int]:
        """The nodes that are online now and have answered hello, name -> Flower's node id.

        New ones are greeted, and belong to it as soon as they have answered. Nobody is waited for: a node
        that hangs must not hold up a round.
        """
        online = set(grid.get_node_ids())
        self._barred &= online
        # Who was refused for a name in use may be the same site, back before the server missed its old node.
        free = {i for i, name in self._queued.items() if self._ids.get(name) not in online}
        self._barred -= free
        self._queued = {i: name for i, name in self._queued.items() if i not in free}
        known = set(self._ids.values()) | self._barred | set(self._greeted.values())
        self._greet(grid, sorted(online - known))
        answers = self._answers(grid)
        enrolled = {n.node_id: n.name for n in grid.get_nodes() if n.name} if answers else {}
        for node_id, answer in answers.items():
            self._admit(node_id, answer, online, enrolled, round_)
        self._tell(grid, {n: self._refused[n] for n in answers if n in self._barred})
        return {name: node_id for name, node_id in sorted(self._ids.items()) if node_id in online}

    def present(self, grid: Grid, round_: int) -> dict[str, int]:
        """As ``look``, but waits until there is a node at all. Raises RunFailed when time is up."""
        deadline = time.monotonic() + self.timeout
        while not (nodes := self.look(grid, round_)):
            if time.monotonic() >= deadline:
                raise RunFailed(f"all nodes are gone, and none came back within {self.timeout:g} s")
            time.sleep(PAUSE)
        return nodes

    def take_news(self) -> list[Joined]:
        """What happened to nodes since the last call."""
        news, self.news = self.news, []
        return news

    def _greet(self, grid: Grid, node_ids: list[int]) -> None:
        messages = [Message(RecordDict(), i, HELLO, ttl=self.timeout) for i in node_ids]
        if messages:
            ids = grid.push_messages(messages)
            self._greeted |= {i: node_id for i, node_id in zip(ids, node_ids, strict=True) if i}

    def _tell(self, grid: Grid, problems: dict[int, str]) -> None:
        """Let nodes log why they were refused: nobody else may ever tell their operators."""
        messages = [
            Message(RecordDict({CONFIG: ConfigRecord({REASON: why})}), i, REFUSED, ttl=self.timeout)
            for i, why in problems.items()
        ]
        if messages:
            grid.push_messages(messages)

    def _answers(self, grid: Grid) -> dict[int, Answer]:
        """What has come by now, by node id. A node that went away or kept silent is greeted anew."""
        replies = list(grid.pull_messages(list(self._greeted))) if self._greeted else []
        come = {self._greeted.pop(r.metadata.reply_to_message_id): r for r in replies}
        return {n: _answer(r) for n, r in sorted(come.items()) if not _unavailable(r)}

    def _admit(
        self, node_id: int, answer: Answer, online: set[int], enrolled: dict[int, str], round_: int
    ) -> None:
        problem, card, own = answer.problem, answer.card, enrolled.get(node_id, "")
        if card is None and own not in problem:
            problem = f"{own}: {problem}"
        if card is not None:
            problem = _false_name(card.name, node_id, enrolled) or self._conflict(card, online, round_)
        if card is None or problem:
            self._refused[node_id] = problem
            self._barred.add(node_id)
            if card is not None and self._ids.get(card.name) in online:
                self._queued[node_id] = card.name
            log.warning("node refused: %s", problem)
            self.news.append(Joined(round=round_, refused=problem))
            return
        if round_ > 0:
            self.news.append(Joined(round=round_, node=card))
        self.cards[card.name], self._ids[card.name] = card, node_id

    def _conflict(self, card: NodeCard, online: set[int], round_: int) -> str:
        if self._ids.get(card.name) in online:
            return f'a second node called "{card.name}"; each site needs a name of its own'
        if round_ == 0 or not self.cards:
            return ""
        model = next(iter(self.cards.values()))
        if (card.classes, card.input_shape) != (model.classes, model.input_shape):
            return f"{_shape(card)}, but the run is for {_shape(model)}"
        return other_names([*self.cards.values(), card])

    def _check_data(self) -> None:
        cards = sorted(self.cards.values(), key=lambda card: card.name)
        for card in cards[1:]:
            if (card.classes, card.input_shape) != (cards[0].classes, cards[0].input_shape):
                raise DataError(
                    f"the nodes' data do not fit together: {_shape(cards[0])}, but {_shape(card)}"
                )
        if problem := other_names(cards):
            raise DataError(f"the nodes' data do not fit together: {problem}")

    def _too_few(self, there: int, needed: int) -> str:
        text = f"{there} of {needed} nodes (min-nodes) were there within {self.timeout:g} s"
        return f"{text}; refused: {'; '.join(self._refused.values())}" if self._refused else text


def _false_name(name: str, node_id: int, enrolled: dict[int, str]) -> str:
    """What is wrong if a node's own name is not the one of its key, by node id; empty without keys."""
    own = enrolled.get(node_id)
    if own is not None and own != name:
        return f'a node called "{name}" has the key enrolled as "{own}"; the two names must be the same'
    if own is None and name in enrolled.values():
        return f'a node called "{name}" has no enrolled key, but that name is enrolled'
    return ""


def other_names(cards: list[NodeCard]) -> str:
    """What is wrong if a node's classes or columns have other names, or another order, than before."""
    named = [card for card in cards if card.naming]
    other = next((card for card in named if card.naming != named[0].naming), None)
    if other is None:
        return ""
    others = "it did before" if other.name == named[0].name else f"{named[0].name} does"
    return (
        f"{other.name} does not name its classes or columns as {others}, and the number of either is its "
        "place in the order of names; all sites need the same columns, and the same class folders, empty "
        "ones for those they lack"
    )


def _unavailable(reply: Message) -> bool:
    return reply.has_error() and reply.error.code in UNAVAILABLE


def _answer(reply: Message) -> Answer:
    if reply.has_error():
        reason = reply.error.reason or f"Flower error {reply.error.code}"
        return Answer(problem=one_line(_RAISED.sub(r"\1", reason)))
    try:
        return Answer(card=read_card(reply.content.config_records[CARD]))
    except (KeyError, ValueError) as error:
        why = f"a node's answer to hello is not one of this version of specfed: {error}"
        return Answer(problem=one_line(why))


def _shape(card: NodeCard) -> str:
    return f"{card.name} has {card.classes} classes and inputs of {'x'.join(map(str, card.input_shape))}"
