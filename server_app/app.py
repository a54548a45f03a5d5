"""The Flower ServerApp: gather nodes, run the rounds, keep the books.

A run always ends with a line in its ledger: ``completed``, ``completed-degraded`` (something was missing or
quarantined on the way, or the last model has no finite loss) or ``failed`` with the reason. It needs at least
one round that moved the model.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache

import torch
from flwr.serverapp import Grid, ServerApp

from common.config import RunConfig
from common.devices import resolve
from common.errors import DataError, RunFailed, SpecfedError
from common.ledger import End, Joined, NodeCard
from common.messages import (
    ARRAYS,
    BUFFERS,
    CONFIG,
    LEARNING_RATE,
    RUN,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
    pack,
    unpack,
)
from common.params import Arrays, carried, load_into, trainable
from common.slots import GRADIENT
from common.traffic import Traffic, traffic
from server_app.books import Books, tell
from server_app.drift import Diagnostics, diagnostics
from server_app.evaluation import Score, on_server, pooled, told_in_round, told_when_asked
from server_app.folder import Past, fit, open_folder
from server_app.probe import make_probe
from server_app.proxy import proxy_losses
from server_app.roster import Roster, other_names
from server_app.start import OwnData, Start, begin, header, own_data, require_fitting
from strategies import presets
from strategies.first_layer_rank import first_layer_rank
from strategies.flower import SLACK, Cohort, PollingGrid, RecipeStrategy, RoundResult
from strategies.free_rider import FreeRiderTest

log = logging.getLogger("flwr")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run, from its configuration to its end line and report.

    Raises a SpecfedError, after the books are closed, if the run failed.
    """
    with ExitStack() as stack:
        with _told_if_refused():
            config = RunConfig.read(context.run_config, "the run configuration")
            device = resolve(config.device)  # before anything is written or taken back
            books = Books(stack.enter_context(open_folder(config, context.run_id)))
        if config.threads:
            torch.set_num_threads(config.threads)
        try:
            with _stoppable():
                federate(PollingGrid(grid).as_grid(), config, device, books)
        except BaseException as error:
            books.close(error)
            raise
        books.close(None)


@contextmanager
def _told_if_refused() -> Iterator[None]:
    """Tell those who watch the log, too, why a run ends before it has books: with its end line."""
    try:
        yield
    except SpecfedError as error:
        tell(End(status="failed", reason=str(error), error=type(error).__name__, rounds=0, seconds=0.0))
        raise


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let a signal unwind the run, so that its books are closed: Flower's handlers leave no time for it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: signal.signal(n, signal.default_int_handler) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def federate(grid: Grid, config: RunConfig, device: torch.device, books: Books) -> None:
    """All rounds. Raises SpecfedError if the run cannot go on."""
    own, past = own_data(config), books.folder.past
    roster = Roster(config.wait_timeout)
    over = past is not None and past.round == config.rounds and own.test is not None
    # Nobody is needed where only the end is missing, and the server tests the model itself.
    cards = roster.gather(grid, 0 if over else config.min_nodes)
    if past is not None:
        tell(past.header.model_copy(update={"config": config.as_dict()}))  # those who watch know of no past
        cards = _back(past, cards, books)
    start = begin(config, cards[0])
    if past is None:
        books.write(header(config, books.folder.path, start, cards, own))
    else:
        arrays, state = fit(past, start.arrays, start.state.buffers)
        start = replace(start, arrays=arrays, state=state)
    require_fitting(config, cards, own)
    _Rounds(grid, config, device, books, own, roster, start).run()


def _back(past: Past, cards: tuple[NodeCard, ...], books: Books) -> tuple[NodeCard, ...]:
    """The nodes that a run goes on with; those that it did not know so are written down."""
    known = past.nodes
    if problem := other_names([*known.values(), *cards]):
        raise DataError(f"the nodes' data do not fit those of the run: {problem}")
    for card in cards:
        if card != known.get(card.name):
            books.write(Joined(round=past.round + 1, node=card))
    return cards or past.header.nodes


class _Rounds:
    """The rounds of a run whose nodes and model are known."""

    def __init__(
        self,
        grid: Grid,
        config: RunConfig,
        device: torch.device,
        books: Books,
        own: OwnData,
        roster: Roster,
        start: Start,
    ) -> None:
        self.grid, self.config, self.device, self.books = grid, config, device, books
        self.own, self.roster, self.start = own, roster, start
        past = books.folder.past
        self.testers = past.testers if past else set()  # nodes that keep rows to test on
        self.strategy = self._strategy()
        start.model.to(device)
        self.diagnostics = self._diagnostics()

    def run(self) -> None:
        """The rounds that are left, and then the score of the last model."""
        result = self.strategy.start(
            self.grid,
            pack(self.start.arrays),
            num_rounds=self.config.rounds - self.books.rounds_done,
            timeout=self.config.round_timeout + SLACK,
            evaluate_fn=self._after_round,
        )
        if not self.books.moved:
            raise RunFailed("no round moved the model: it is the one it began with")
        final = unpack(result.arrays) if result.arrays else self.start.arrays
        if self.own.test is None:
            self.books.score = self._ask_nodes(final)
        elif not result.arrays:  # only the end was missing, and what it says of the model
            self._load(final)
            self.books.score = on_server(self.start.model, self.own.test, self.device)

    def _strategy(self) -> RecipeStrategy:
        config, start, proxy = self.config, self.start, None
        if self.own.proxy is not None:
            proxy = proxy_losses(start.model, self.own.proxy, self.device, config.batch_size)
        recipe = presets.build(config, proxy)
        rank_test = first_layer_rank(config, start.arrays, start.head)
        unseen = recipe.guards.unseen(start.arrays) if recipe.guards else ""
        for sentence in filter(None, (rank_test.unavailable, unseen)):
            log.info(sentence)
        return RecipeStrategy(
            recipe,
            start.head,
            Cohort(
                seed=config.seed,
                fraction=config.fraction_train,
                min_clients=config.min_replies,  # fewer could not move the model
                min_replies=config.min_replies,
                timeout=config.round_timeout,
                max_failed_rounds=config.max_failed_rounds,
                max_examples=config.max_examples,
            ),
            self.roster.present,
            self._order,
            start.state,
            self.books.rounds_done,
            rank_test,
            free_rider_test=FreeRiderTest(config.free_rider_z, config.free_rider_share),
            traffic=self._traffic(),
            extra_reports=(GRADIENT,) if config.diagnostics == "gradients" else (),
        )

    def _diagnostics(self) -> Diagnostics | None:
        config, start = self.config, self.start
        if config.diagnostics == "off":
            return None
        probe = None
        if self.own.test is not None and config.diagnostics_probe:
            probe = make_probe(start.model, start.head, self.own.test, config.diagnostics_probe, self.device)
        return diagnostics(config, start.model, probe)

    def _after_round(self, server_round: int, current: ArrayRecord) -> MetricRecord | None:
        """What Flower calls after each round, and before the first one."""
        result = self.strategy.last
        if server_round == 0 or result is None:
            return None
        arrays = unpack(current)
        self._load(arrays)
        score = self._evaluate(result)
        for joined in self.roster.take_news():
            self.books.write(joined)
        rate = self._rate(result.number)
        drift = self.diagnostics.look(result, rate) if self.diagnostics else None
        self.books.after_round(result, self.config.rounds, score, drift)
        self.books.save(arrays, self.strategy.state, self.config.keep_checkpoints)
        self.strategy.check_quorum()
        return None

    def _load(self, arrays: Arrays) -> None:
        load_into(trainable(self.start.model), arrays)
        load_into(carried(self.start.model), self.strategy.state.buffers)

    def _evaluate(self, result: RoundResult) -> Score:
        if self.own.test is not None:
            return on_server(self.start.model, self.own.test, self.device)
        # The nodes tested the model that this round began with.
        told = told_in_round(result)
        self.testers |= told.keys()
        return pooled(told, self.config.max_examples)

    def _ask_nodes(self, model: Arrays) -> Score:
        """What each node would receive next, tested on its validation rows if it has some.

        That is what the rounds' scores are of, too.
        """
        send, state = self.strategy.recipe.send, self.strategy.state
        buffers, order = pack(state.buffers), self._order(self.books.rounds_done)
        nodes = self.roster.look(self.grid, self.books.rounds_done)
        messages = [
            Message(
                RecordDict({ARRAYS: pack(own), BUFFERS: buffers, CONFIG: order}),
                node,
                "evaluate",
                ttl=self.config.round_timeout,
            )
            for name, node in nodes.items()
            if name in self.testers
            for own in [send.model_for(state.recipe.personal, name, model)]
        ]
        replies = self.grid.send_and_receive(messages, timeout=self.config.round_timeout + SLACK)
        told = told_when_asked(replies, {node: name for name, node in nodes.items()})
        return pooled(told, self.config.max_examples)

    def _traffic(self) -> Callable[[int], Traffic]:
        """How updates of this model travel in each round; made once a round."""
        shapes = {name: x.shape for name, x in self.start.arrays.items()}
        filtered = set(self.start.filtered)
        return lru_cache(maxsize=1)(lambda number: traffic(self.config, shapes, filtered, number))

    def _order(self, number: int) -> ConfigRecord:
        return ConfigRecord(
            {
                RUN: self.books.folder.path.name,
                "round": number,
                LEARNING_RATE: self._rate(number),
                "input-shape": list(self.start.input_shape),
                "classes": self.start.classes,
            }
        )

    def _rate(self, number: int) -> float:
        """The nodes' learning rate in a round."""
        return self.config.learning_rate * self.config.lr_decay ** (number - 1)
