"""The one Flower strategy: it moves messages; the arithmetic is the recipe's.

Flower's own ``Strategy.start`` is the loop over rounds. Flower's FedAvg would let one bad reply end a run,
average NaN in, wait for ever for a node, and not notice a node that never answered; this strategy
admits replies one by one, knows whom it asked, and gives every round a deadline.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast, final

import httpx
import numpy as np
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from common.errors import RunFailed
from common.ledger import Flag, Status
from common.messages import (
    ACCEPTED,
    ARRAYS,
    BUFFERS,
    CONFIG,
    ERA,
    LEARNING_RATE,
    MEMORY_LOST,
    METRICS,
    REPORT,
    SLOT,
    UPDATE,
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
    RecordDict,
    pack,
    unpack,
)
from common.models import Head
from common.params import Arrays, norm
from common.patience import patience
from common.seeding import stream
from common.text import one_line
from common.traffic import WHOLE, Traffic
from strategies.admission import Inadmissible, Said, Schema, admit
from strategies.first_layer_rank import NO_RANK_TEST, Ranks, RankTest
from strategies.free_rider import DEFAULT_TEST, FreeRiderTest, History
from strategies.intake import guarded, largest_reply
from strategies.recipe import Outcome, Recipe, RecipeState
from strategies.round import Reply, Round
from strategies.soundness import flaw

log = logging.getLogger("flwr")

UNAVAILABLE = (3, 4, 5)  # Flower's codes for a message that expired or a node that went away
PART_SECONDS = 2.0  # for the rest of a reply, where there is no deadline
TROUBLE_SECONDS = 120.0  # in which a server may fail to hand out replies before a run gives up
SLACK = 5.0  # seconds after the deadline in which Flower's own error replies still arrive


@dataclass(frozen=True)
class Verdict:
    """What became of one client's turn in a round."""

    client: str
    status: Status
    reason: str = ""
    reply: Reply | None = None


@dataclass(frozen=True)
class RoundResult:
    """All there is to know of a round after it."""

    number: int
    verdicts: tuple[Verdict, ...]  # in the order of the clients' names
    seconds: float
    outcome: Outcome | None = None  # None: the model stayed as it was, for ``reason``
    flags: Mapping[str, tuple[Flag, ...]] = field(default_factory=dict)  # of the clients that have some
    reason: str = ""
    sent: Mapping[str, Arrays] = field(default_factory=dict)  # the parameters that each client received

    @property
    def accepted(self) -> tuple[Reply, ...]:
        """The admitted replies, in the order of the clients' names."""
        return tuple(v.reply for v in self.verdicts if v.reply is not None)


@dataclass(frozen=True)
class StrategyState:
    """What goes from round to round beside the parameters: with them, a whole checkpoint."""

    buffers: Arrays
    recipe: RecipeState = RecipeState()
    history: History = field(default_factory=dict)
    accepted: Mapping[str, int] = field(default_factory=dict)  # client -> round of its last accepted reply
    era: int = 0  # how often all nodes' memories had to start anew; ``accepted`` is of this era
    ranks: Ranks = field(default_factory=dict)  # the highest so far, for the first-layer rank test


@dataclass(frozen=True)
class Cohort:
    """Who trains in a round, and when a round counts."""

    seed: int = 0
    fraction: float = 1.0
    min_clients: int = 1
    min_replies: int = 1
    timeout: float = 600.0
    max_failed_rounds: int = 3
    max_examples: int = 100_000_000

    def sample(self, names: Sequence[str], round_: int) -> list[str]:
        """The names of a round's clients, sorted: the same for the same seed, round and set of names."""
        # Less a hair: 0.07 * 100 is a little more than 7, and means 7.
        count = max(self.min_clients, math.ceil(self.fraction * len(names) * (1 - 1e-12)))
        if count >= len(names):
            return sorted(names)
        chosen = stream(self.seed, "cohort", round_).choice(sorted(names), count, replace=False)
        return sorted(str(name) for name in chosen)


Present = Callable[[Grid, int], dict[str, int]]  # the round's nodes: stable name -> Flower's node id
Order = Callable[[int], ConfigRecord]  # what a round's message says beside the tensors
TrafficOf = Callable[[int], Traffic]  # of a round


@dataclass(frozen=True)
class Sent:
    """What one node is sent in a round."""

    arrays: ArrayRecord  # parameters
    buffers: ArrayRecord
    order: ConfigRecord
    slots: Mapping[str, ArrayRecord] = field(default_factory=dict)
    accepted: Mapping[str, int] = field(default_factory=dict)  # era, and round of the last accepted reply


@dataclass(frozen=True)
class Wire:
    """What messages to nodes hold, how a model becomes a record, and how a reply to a broadcast of these
    parameters is read.

    ``read`` raises Inadmissible, or what broken records and arrays raise, for a reply that it cannot read.
    """

    ask: Callable[[Sent], RecordDict]
    read: Callable[[RecordDict, Arrays], Said]
    pack: Callable[[Arrays], ArrayRecord] = pack


def _ask(sent: Sent) -> RecordDict:
    order = ConfigRecord({**sent.order, **sent.accepted})
    slots = {f"{SLOT}{name}": record for name, record in sent.slots.items()}
    return RecordDict({ARRAYS: sent.arrays, BUFFERS: sent.buffers, CONFIG: order, **slots})


def _read(content: RecordDict, model: Arrays) -> Said:
    records = content.array_records  # Flower picks them out anew each time
    reports = {
        name.removeprefix(REPORT): unpack(record)
        for name, record in records.items()
        if name.startswith(REPORT)
    }
    update, buffers = unpack(records[UPDATE]), unpack(records[BUFFERS])
    return Said(update, buffers, dict(content.metric_records[METRICS]), reports)


OURS = Wire(_ask, _read)  # that of ``common.messages``


@final
class RecipeStrategy(Strategy):
    """Runs a recipe over Flower. ``last`` holds the latest round's result, ``state`` what comes next."""

    def __init__(
        self,
        recipe: Recipe,
        head: Head,
        cohort: Cohort,
        present: Present,
        order: Order,
        state: StrategyState,
        rounds_done: int = 0,
        rank_test: RankTest = NO_RANK_TEST,
        wire: Wire = OURS,
        free_rider_test: FreeRiderTest = DEFAULT_TEST,
        traffic: TrafficOf = lambda number: WHOLE,
        extra_reports: tuple[str, ...] = (),
    ) -> None:
        self.recipe, self.head, self.cohort = recipe, head, cohort
        self.present, self.order = present, order
        self.state, self.rounds_done = state, rounds_done
        self.rank_test, self.wire, self.free_rider_test = rank_test, wire, free_rider_test
        self.traffic, self.reports = traffic, (*recipe.rule.reports, *extra_reports)
        self.last: RoundResult | None = None
        self._turn = _Turn()
        self._failed = 0

    def summary(self) -> None:
        """Log what the strategy is made of."""
        signals = ", ".join(self.recipe.signals) or "none"
        log.info("\tsignals: %s; participation: %s", signals, self.cohort.fraction)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message to each node of the round's cohort."""
        number = self.rounds_done + server_round
        started = time.monotonic()
        nodes = self.present(grid, number)
        names = self.cohort.sample(list(nodes), number)
        model = unpack(arrays)
        sent = {name: self.recipe.send.model_for(self.state.recipe.personal, name, model) for name in names}
        order, buffers = self.order(number), pack(self.state.buffers)
        slots = self._slots(model, number, nodes)
        packed = {slot: pack(self.traffic(number).encode_slot(x)) for slot, x in slots.items()}
        messages = {
            name: Message(
                self.wire.ask(
                    Sent(
                        arrays if sent[name] is model else self.wire.pack(sent[name]),
                        buffers,
                        order,
                        packed,
                        {ERA: self.state.era, ACCEPTED: self.state.accepted.get(name, 0)},
                    )
                ),
                nodes[name],
                "train",
                ttl=self.cohort.timeout,
                group_id=str(number),
            )
            for name in names
        }
        self._turn = _Turn(number, started, model, sent, messages, tuple(nodes), slots, _rate(order))
        return list(messages.values())

    def _slots(self, model: Arrays, number: int, nodes: Iterable[str]) -> dict[str, Arrays]:
        """What goes to the nodes beside the model, in its types: as they will have it after the journey."""
        recipe = self.state.recipe
        population = len({*recipe.members, *nodes})
        traffic = self.traffic(number)
        return {
            slot: traffic.as_received({name: x.astype(model[name].dtype) for name, x in arrays.items()})
            for slot, arrays in self.recipe.rule.broadcast(recipe.shared, population).items()
        }

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Admit the replies, run the recipe, and keep the round's result in ``last``.

        A round with too few usable replies, and one whose result is not finite, changes nothing; how many of
        them a run may have in a row is for ``check_quorum`` to say.
        """
        turn = self._turn
        classes = self.head.shape[0] if self.recipe.needs_labels else None
        schema = Schema.of(
            turn.model,
            self.state.buffers,
            self.cohort.max_examples,
            classes,
            coordinates=self.traffic(turn.number).encode_update(turn.model),
            reports=self.reports,
            needs_steps=self.recipe.rule.needs_steps,
        )
        verdicts = self._verdicts(turn, replies, schema)
        accepted = tuple(v.reply for v in verdicts if v.reply is not None)
        if len(accepted) < max(1, self.cohort.min_replies):
            there = f"{len(accepted)} usable replies of {len(verdicts)}"
            return self._fail(verdicts, f"{there}, min-replies is {self.cohort.min_replies}")
        round_ = Round(turn.number, turn.model, self.head, accepted, turn.slots, turn.learning_rate)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found in the result
            recipe_state, outcome = self.recipe.run(self.state.recipe, round_, turn.known)
        if found := flaw(recipe_state, round_, outcome):
            return self._fail(verdicts, f"{found} would hold NaN or infinity; {_largest(accepted)}")
        if len(accepted) - len(outcome.dropped) < self.cohort.min_replies:
            out = f"the guards leave out {', '.join(outcome.dropped)} of {len(accepted)} replies"
            return self._fail(verdicts, f"{out}, min-replies is {self.cohort.min_replies}")
        self._failed = 0
        history, low = self.free_rider_test.look(self.state.history, round_.clients, outcome.shares)
        ranks, few = self.rank_test.look(self.state.ranks, round_)
        flags = _by_client(_one_each(low), _one_each(few), outcome.flags)
        taken = [client for client in round_.clients if client not in outcome.dropped]
        accepted_rounds = {**self.state.accepted, **dict.fromkeys(taken, turn.number)}
        state = StrategyState(outcome.buffers, recipe_state, history, accepted_rounds, self.state.era, ranks)
        self.state, notes = self._without_lost_memory(state, accepted)
        said = "; ".join((*outcome.notes, *notes))
        self.last = RoundResult(turn.number, verdicts, turn.seconds(), outcome, flags, said, turn.sent)
        return self.wire.pack(outcome.model), MetricRecord(
            {"accepted": len(accepted), "sampled": len(verdicts)}
        )

    def _fail(self, verdicts: tuple[Verdict, ...], why: str) -> tuple[None, None]:
        """A round that changes nothing."""
        self._failed += 1
        turn = self._turn
        self.last = RoundResult(turn.number, verdicts, turn.seconds(), reason=why, sent=turn.sent)
        return None, None

    def _without_lost_memory(
        self, state: StrategyState, accepted: Sequence[Reply]
    ) -> tuple[StrategyState, tuple[str, ...]]:
        """The state, started anew if a node lost what the server's sums still hold of it.

        The server keeps sums alone, so it cannot take one node out of them; zeros on both sides are right.
        """
        lost = [reply.client for reply in accepted if reply.metrics.get(MEMORY_LOST)]
        if not lost:
            return state, ()
        what = f"{', '.join(lost)} lost what {'they' if lost[1:] else 'it'} remembered of earlier rounds"
        if not self.recipe.rule.needs_memory:
            return state, (f"{what}; the algorithm does without",)
        log.warning("round %d: %s: all nodes' memories start anew", self._turn.number, what)
        anew = replace(state, recipe=replace(state.recipe, shared={}), accepted={}, era=state.era + 1)
        return anew, (f"{what}: the algorithm's state starts anew on all nodes",)

    def check_quorum(self) -> None:
        """Raise RunFailed if too many rounds in a row changed nothing."""
        if self.last is not None and self._failed >= self.cohort.max_failed_rounds:
            reasons = sorted({f"{v.client}: {v.reason}" for v in self.last.verdicts if v.reason})
            why = f" ({'; '.join(reasons)})" if reasons else ""
            raise RunFailed(f"{self._failed} rounds in a row did not move the model: {self.last.reason}{why}")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: nodes test the model they receive before they train it."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing to aggregate."""
        return None

    def _verdicts(self, turn: "_Turn", replies: Iterable[Message], schema: Schema) -> tuple[Verdict, ...]:
        client_of = {m.metadata.message_id: name for name, m in turn.messages.items()}
        verdicts = {
            name: Verdict(name, "missing", f"no reply within {self.cohort.timeout:g} s")
            for name in turn.messages
        }
        for reply in replies:
            client = client_of.get(reply.metadata.reply_to_message_id)
            if client is not None:
                verdicts[client] = self._judge(client, reply, schema)
        return tuple(verdicts[name] for name in sorted(verdicts))

    def _judge(self, client: str, reply: Message, schema: Schema) -> Verdict:
        if reply.has_error():
            reason = reply.error.reason or f"Flower error {reply.error.code}"
            status: Status = "missing" if reply.error.code in UNAVAILABLE else "error"
            return Verdict(client, status, one_line(reason))
        try:
            said = self.wire.read(reply.content, self._turn.sent[client])
            whole = self.traffic(self._turn.number).decode_update
            return Verdict(client, "accepted", reply=admit(client, said, schema, whole))
        except Inadmissible as error:
            why = str(error)
        except KeyError as error:
            why = f"the reply has no record {error}"
        except (ValueError, TypeError, EOFError, OSError) as error:
            why = f"the reply's tensors cannot be read: {error}"
        return Verdict(client, "quarantined", one_line(why))  # it may quote what the node sent


@dataclass(frozen=True)
class _Turn:
    """A round between its messages and its replies."""

    number: int = 0
    started: float = 0.0
    model: Arrays = field(default_factory=dict)  # the server's
    sent: Mapping[str, Arrays] = field(default_factory=dict)  # what each node received
    messages: dict[str, Message] = field(default_factory=dict)
    known: tuple[str, ...] = ()
    slots: Mapping[str, Arrays] = field(default_factory=dict)  # beside the model, to every node
    learning_rate: float = 1.0

    def seconds(self) -> float:
        return time.monotonic() - self.started


def _one_each(flags: Mapping[str, Flag]) -> dict[str, tuple[Flag, ...]]:
    return {client: (flag,) for client, flag in flags.items()}


def _by_client(*found: Mapping[str, tuple[Flag, ...]]) -> dict[str, tuple[Flag, ...]]:
    clients = sorted(set().union(*found))
    return {client: tuple(flag for flags in found for flag in flags.get(client, ())) for client in clients}


def _largest(replies: Sequence[Reply]) -> str:
    """Whose update to look at first."""
    size, client = max((norm(reply.update), reply.client) for reply in replies)
    return f"the largest update is that of {client}, with norm {size:.3g}"


def _rate(order: ConfigRecord) -> float:
    rate = order.get(LEARNING_RATE, 1.0)
    return rate if isinstance(rate, float) else 1.0


class PollingGrid:
    """A Flower grid whose ``send_and_receive`` looks for replies often and keeps to a deadline.

    Flower's own looks every three seconds, and believes what a reply says of itself (``strategies.intake``).
    Everything else is passed on.
    """

    def __init__(self, grid: Grid, interval: float = 0.25) -> None:
        self._grid, self._interval = grid, interval
        self._largest = largest_reply(())
        self._answered = time.monotonic()  # when the server last handed out what it had

    def __getattr__(self, name: str) -> object:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """All replies that came within ``timeout`` seconds, in any order."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        sent = list(messages)  # Flower reads them twice
        self._largest = largest_reply(sent)
        waiting = {i for i in self._grid.push_messages(sent) if i} if sent else set()
        self._answered = time.monotonic()
        replies: list[Message] = []
        while waiting:
            # A reply that is announced, but never arrives whole, takes all the time that is left. What came
            # from others meanwhile is seen when it is over, in a last look that waits for nothing.
            over = time.monotonic() >= deadline
            with patience(deadline - time.monotonic()), guarded(self._largest):
                pulled = self._pulled(waiting)
            for reply in pulled:
                replies.append(reply)
                waiting.discard(reply.metadata.reply_to_message_id)
            if not waiting or over:
                break
            time.sleep(self._interval)
        return replies

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to these messages that have come. Soon back, also if one of them has come in part."""
        with patience(PART_SECONDS), guarded(self._largest):
            return self._pulled(message_ids)

    def _pulled(self, message_ids: Iterable[str]) -> list[Message]:
        """What has come; nothing where the server has an error of its own, such as a disk that hangs."""
        try:
            replies = list(self._grid.pull_messages(message_ids))
        except httpx.HTTPStatusError as error:
            trouble = time.monotonic() - self._answered
            if error.response.is_client_error or trouble > TROUBLE_SECONDS:
                raise
            log.warning("the server cannot hand out replies, and is asked again: %s", one_line(str(error)))
            return []
        self._answered = time.monotonic()
        return replies

    def as_grid(self) -> Grid:
        """Itself, for a type checker."""
        return cast(Grid, self)
