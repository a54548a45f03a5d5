"""The Flower ServerApp: gather nodes, run the rounds, keep the books.

A run always ends with a line in its ledger: ``completed``, ``completed-degraded`` (something was missing or
quarantined on the way, or the last model has no finite loss) or ``failed`` with the reason. It needs at least
one round that moved the model.
"""

import logging
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version

import torch
from flwr.serverapp import Grid, ServerApp
from torch import nn

from common import __version__, filters, models
from common.config import RunConfig
from common.datasets import Examples, fingerprint, load
from common.devices import resolve
from common.errors import DataError, RunFailed, SpecfedError
from common.ledger import (
    LEDGER,
    LOG_MARK,
    End,
    Header,
    Joined,
    ModelCard,
    NodeCard,
    Record,
    RoundRecord,
    read,
)
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
from common.params import Arrays, carried, load_into, to_arrays, trainable
from common.slots import GRADIENT
from common.traffic import Traffic, traffic
from server_app.bookkeeping import client_records, reason_of, status_of, suspects_in
from server_app.drift import Diagnostics, diagnostics
from server_app.evaluation import Score, on_server, pooled, told_in_round, told_when_asked
from server_app.folder import RunFolder, fit, open_folder
from server_app.probe import make_probe
from server_app.proxy import proxy_losses
from server_app.report.writing import write_report
from server_app.roster import Roster, other_names
from strategies import presets
from strategies.first_layer_rank import first_layer_rank
from strategies.flower import SLACK, Cohort, PollingGrid, RecipeStrategy, RoundResult, StrategyState
from strategies.free_rider import FreeRiderTest
from strategies.signals.entropy import check_layer

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
            folder = stack.enter_context(open_folder(config, context.run_id))
        run = _Run(PollingGrid(grid).as_grid(), config, folder, device)
        if config.threads:
            torch.set_num_threads(config.threads)
        try:
            with _stoppable():
                run.federate()
        except BaseException as error:
            run.close(error)
            raise
        run.close(None)


@contextmanager
def _told_if_refused() -> Iterator[None]:
    """Tell those who watch the log, too, why a run ends before it has books: with its end line."""
    try:
        yield
    except SpecfedError as error:
        _tell(End(status="failed", reason=str(error), error=type(error).__name__, rounds=0, seconds=0.0))
        raise


def _tell(record: Record) -> None:
    log.info("%s%s", LOG_MARK, record.model_dump_json(by_alias=True))


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


class _Run:
    """The state of the run that this process carries out."""

    def __init__(self, grid: Grid, config: RunConfig, folder: RunFolder, device: torch.device) -> None:
        self.grid, self.config, self.folder = grid, config, folder
        self.roster = Roster(config.wait_timeout)
        self.test: Examples | None = None
        self.proxy: Examples | None = None
        self.device = device
        past = folder.past
        self.started = time.monotonic() - (past.elapsed if past else 0.0)
        self.rounds_done = past.round if past else 0
        self.moved = past is not None and past.moved  # whether any round moved the model
        self.score = past.score if past else Score()
        self.testers = past.testers if past else set()  # nodes that keep rows to test on
        self.diagnostics: Diagnostics | None = None

    def federate(self) -> None:
        """All rounds. Raises SpecfedError if the run cannot go on."""
        if self.config.eval_data:
            self.test = load(self.config.eval_data, "test")
        if self.config.proxy_data:
            self.proxy = load(self.config.proxy_data, "train")
        cards = self._cards()
        shape, classes = cards[0].input_shape, cards[0].classes
        model = models.build(self.config.model, shape, classes, self.config.seed)
        head = models.resolve_head(model, classes, self.config.head)
        models.require_logits(model, shape, classes)
        arrays, state = to_arrays(trainable(model)), StrategyState(to_arrays(carried(model)))
        filtered = set(filters.filtered_names(self.config.filter_settings, model))
        if self.config.entropy_layer:
            check_layer(self.config.entropy_layer, arrays)
        rank_test = first_layer_rank(self.config, arrays, head)
        if rank_test.unavailable:
            log.info(rank_test.unavailable)
        if self.folder.past is None:
            self._write(self._header(model, head, len(filtered), cards))
        else:
            arrays, state = fit(self.folder.past, arrays, state.buffers)
        self._require_fitting(cards)
        proxy = None
        if self.proxy is not None:
            proxy = proxy_losses(model, self.proxy, self.device, self.config.batch_size)
        recipe = presets.build(self.config, proxy)
        if recipe.guards is not None and (unseen := recipe.guards.unseen(arrays)):
            log.info(unseen)
        strategy = RecipeStrategy(
            recipe,
            head,
            Cohort(
                seed=self.config.seed,
                fraction=self.config.fraction_train,
                min_replies=self.config.min_replies,
                timeout=self.config.round_timeout,
                max_failed_rounds=self.config.max_failed_rounds,
                max_examples=self.config.max_examples,
            ),
            self.roster.present,
            lambda number: self._order(number, shape, classes),
            state,
            self.rounds_done,
            rank_test,
            free_rider_test=FreeRiderTest(self.config.free_rider_z, self.config.free_rider_share),
            traffic=self._traffic(model, filtered),
            extra_reports=(GRADIENT,) if self.config.diagnostics == "gradients" else (),
        )
        model.to(self.device)
        self.diagnostics = self._diagnostics(model, head)

        def after_round(server_round: int, current: ArrayRecord) -> MetricRecord | None:
            if server_round > 0 and strategy.last is not None:
                self._after_round(strategy.last, unpack(current), strategy.state, model)
                strategy.check_quorum()
            return None

        result = strategy.start(
            self.grid,
            pack(arrays),
            num_rounds=self.config.rounds - self.rounds_done,
            timeout=self.config.round_timeout + SLACK,
            evaluate_fn=after_round,
        )
        if not self.moved:
            raise RunFailed("no round moved the model: it is the one it began with")
        final = unpack(result.arrays) if result.arrays else arrays
        if self.test is None:
            self.score = self._ask_nodes(strategy, final, shape, classes)
        elif not result.arrays:  # only the end was missing, and what it says of the model
            load_into(trainable(model), final)
            load_into(carried(model), strategy.state.buffers)
            self.score = on_server(model, self.test, self.device)

    def _require_fitting(self, cards: tuple[NodeCard, ...]) -> None:
        """Raise DataError if the server's own data are not of the nodes' kind."""
        nodes = cards[0]
        naming = next((card.naming for card in cards if card.naming), "")
        for key, examples in {"eval-data": self.test, "proxy-data": self.proxy}.items():
            if examples is None:
                continue
            named = f"{key} {self.config.as_dict()[key]}"
            if (examples.classes, examples.input_shape) != (nodes.classes, nodes.input_shape):
                raise DataError(
                    f"{named} has {examples.classes} classes and inputs of {examples.input_shape}; "
                    f"the nodes have {nodes.classes} and {nodes.input_shape}"
                )
            if naming and examples.naming not in ("", naming):
                raise DataError(f"{named} does not name its classes as the nodes do")

    def _cards(self) -> tuple[NodeCard, ...]:
        """The nodes that the run begins or goes on with. Raises what ``Roster.gather`` raises.

        Nobody is needed where only the end is missing, and the server tests the model itself.
        """
        past = self.folder.past
        over = past is not None and past.round == self.config.rounds and self.test is not None
        cards = self.roster.gather(self.grid, 0 if over else self.config.min_nodes)
        if past is None:
            return cards
        known = past.nodes
        if problem := other_names([*known.values(), *cards]):
            raise DataError(f"the nodes' data do not fit those of the run: {problem}")
        for card in cards:
            if card != known.get(card.name):
                self._write(Joined(round=past.round + 1, node=card))
        return cards or past.header.nodes

    def close(self, error: BaseException | None) -> None:
        """Write the end line and the report."""
        records = list(read(self.folder.path / LEDGER))
        end = End(
            status=status_of(error, records, self.score.doubt),
            reason=reason_of(error, self.score.doubt),
            error="" if error is None else type(error).__name__,
            rounds=self.rounds_done,
            seconds=self._elapsed(),
            accuracy=self.score.accuracy,
            loss=self.score.loss,
            suspects=suspects_in(records),
        )
        self._write(end)
        if not any(isinstance(r, Header) for r in records):
            return
        try:
            write_report(self.folder.path)
        except Exception as problem:  # of any kind: a page must not make a failure of a good run
            log.error(
                "the report could not be written (%s: %s); 'specfed report %s' tries again",
                type(problem).__name__,
                problem,
                self.folder.path,
            )

    def _after_round(
        self, result: RoundResult, arrays: Arrays, state: StrategyState, model: nn.Module
    ) -> None:
        load_into(trainable(model), arrays)
        load_into(carried(model), state.buffers)
        self.rounds_done = result.number
        self.moved |= result.outcome is not None
        self.score = self._evaluate(model, result)
        for joined in self.roster.take_news():
            self._write(joined)
        for line in client_records(result):
            self._write(line)
        self._look_for_drift(result)
        outcome = result.outcome
        record = RoundRecord(
            round=result.number,
            rounds=self.config.rounds,
            sampled=len(result.verdicts),
            accepted=len(result.accepted),
            moved=outcome is not None,
            reason="; ".join(text for text in (result.reason, self.score.note) if text),
            accuracy=self.score.accuracy,
            loss=self.score.loss,
            evaluated_on=self.score.on,
            noise=dict(outcome.scores.noise) if outcome and outcome.scores else {},
            seconds=result.seconds,
            elapsed=self._elapsed(),
        )
        self._write(record)
        self.folder.record(record)
        if outcome is not None:
            clients = [reply.client for reply in result.accepted]
            weights = dict(zip(clients, outcome.weights.tolist(), strict=True))
            self.folder.record_values(result.number, "weight", weights)
        clock = {"elapsed": self._elapsed()}
        self.folder.save_round(result.number, arrays, state, clock, self.config.keep_checkpoints)

    def _diagnostics(self, model: nn.Module, head: models.Head) -> Diagnostics | None:
        if self.config.diagnostics == "off":
            return None
        probe = None
        if self.test is not None and self.config.diagnostics_probe:
            probe = make_probe(model, head, self.test, self.config.diagnostics_probe, self.device)
        return diagnostics(self.config, model, probe)

    def _look_for_drift(self, result: RoundResult) -> None:
        if self.diagnostics is None:
            return
        found = self.diagnostics.look(result, self._rate(result.number))
        if found is not None:
            self._write(found)
            self.folder.record_values(
                result.number, "drift-band", {str(m): value for m, value in enumerate(found.dist)}
            )

    def _evaluate(self, model: nn.Module, result: RoundResult) -> Score:
        if self.test is not None:
            return on_server(model, self.test, self.device)
        # The nodes tested the model that this round began with.
        told = told_in_round(result)
        self.testers |= told.keys()
        return pooled(told, self.config.max_examples)

    def _ask_nodes(
        self, strategy: RecipeStrategy, model: Arrays, shape: tuple[int, ...], classes: int
    ) -> Score:
        """What each node would receive next, tested on its validation rows if it has some.

        That is what the rounds' scores are of, too.
        """
        send, personal = strategy.recipe.send, strategy.state.recipe.personal
        buffers, order = pack(strategy.state.buffers), self._order(self.rounds_done, shape, classes)
        nodes = self.roster.look(self.grid, self.rounds_done)
        messages = [
            Message(
                RecordDict(
                    {ARRAYS: pack(send.model_for(personal, name, model)), BUFFERS: buffers, CONFIG: order}
                ),
                node,
                "evaluate",
                ttl=self.config.round_timeout,
            )
            for name, node in nodes.items()
            if name in self.testers
        ]
        replies = self.grid.send_and_receive(messages, timeout=self.config.round_timeout + SLACK)
        told = told_when_asked(replies, {node: name for name, node in nodes.items()})
        return pooled(told, self.config.max_examples)

    def _traffic(self, model: nn.Module, filtered: set[str]) -> Callable[[int], Traffic]:
        """How updates of this model travel in each round; made once a round."""
        shapes = {name: tuple(p.shape) for name, p in trainable(model).items()}
        return lru_cache(maxsize=1)(lambda number: traffic(self.config, shapes, filtered, number))

    def _order(self, number: int, shape: tuple[int, ...], classes: int) -> ConfigRecord:
        rate = self._rate(number)
        return ConfigRecord(
            {
                RUN: self.folder.path.name,
                "round": number,
                LEARNING_RATE: rate,
                "input-shape": list(shape),
                "classes": classes,
            }
        )

    def _rate(self, number: int) -> float:
        """The nodes' learning rate in a round."""
        return self.config.learning_rate * self.config.lr_decay ** (number - 1)

    def _header(
        self, model: nn.Module, head: models.Head, filtered: int, cards: tuple[NodeCard, ...]
    ) -> Header:
        config = self.config
        return Header(
            run_id=self.folder.path.name,
            folder=str(self.folder.path),
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            config=config.as_dict(),
            versions=_versions(),
            model=ModelCard(
                name=config.model,
                parameters=models.count_parameters(model),
                tensors=len(trainable(model)),
                filtered_tensors=filtered,
                head=head.weight,
                head_shape=head.shape,
            ),
            nodes=cards,
            eval_fingerprint="" if self.test is None else fingerprint(self.test),
            proxy_fingerprint="" if self.proxy is None else fingerprint(self.proxy),
        )

    def _write(self, record: Record) -> None:
        self.folder.write(record)
        _tell(record)

    def _elapsed(self) -> float:
        return time.monotonic() - self.started


def _versions() -> Mapping[str, str]:
    names = ("flwr", "torch", "numpy")
    ours = {"specfed": __version__, "python": platform.python_version()}
    return {**ours, **{name: version(name) for name in names}}
