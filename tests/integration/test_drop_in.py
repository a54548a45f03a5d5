"""The example app with a strategy of ours in FedAvg's place: in one process, and on real nodes."""

import importlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from common.config import RunConfig
from common.errors import ModelError, RunFailed
from specfed.addresses import LOOPBACK, Address, reserve_port
from specfed.launcher import children, runs
from specfed.launcher.start import spawn_node, spawn_server, spawn_warm, wait_ready
from specfed.local_grid import SERVER_ID, LocalGrid, own_identity
from strategies import presets
from strategies.drop_in import SpectralFed, SpectralFuse, find_head, from_recipe
from strategies.reward import Personalised

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart"
RUN = {"num-server-rounds": 3, "min-nodes": 3, "local-epochs": 1, "learning-rate": 0.1}
NODES = [{"partition-id": i, "num-partitions": 3} for i in range(3)]
UNIFORM = presets.build(RunConfig.model_validate({"weighting": "uniform"}))

Handler = Callable[[Message, Context], Message]
Change = Callable[[RecordDict], RecordDict]


class NamedGrid(LocalGrid):
    """A grid whose SuperLink knows the nodes by name."""

    def get_nodes(self) -> list[NodeInfo]:  # type: ignore[override]
        return [NodeInfo(node_id=i, name=f"clinic-{i - SERVER_ID}") for i in self.get_node_ids()]


@pytest.fixture
def quickstart(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of the example, as Flower does from the app's folder."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    with own_identity():
        yield lambda name: importlib.import_module(f"quickstart.{name}")


@pytest.fixture
def app(quickstart: Callable[[str], ModuleType]) -> Handler:
    handler: Handler = quickstart("client_app").app
    return handler


@pytest.fixture
def start(quickstart: Callable[[str], ModuleType]) -> ArrayRecord:
    """The first model."""
    torch.manual_seed(0)
    return ArrayRecord(quickstart("task").Net().state_dict())


def spoiled(app: Handler, partition: int, change: Change) -> Handler:
    """The ClientApp, with one node's replies to train messages changed."""

    def handler(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type != "train" or context.node_config["partition-id"] != partition:
            return reply
        return Message(change(reply.content), reply_to=message)

    return handler


def with_array(name: str, value: np.ndarray | None) -> Change:
    def change(content: RecordDict) -> RecordDict:
        arrays = dict(content.array_records["arrays"])
        arrays.pop(name, None)
        if value is not None:
            arrays[name] = Array(value)
        return RecordDict({"arrays": ArrayRecord(arrays), "metrics": content["metrics"]})

    return change


def grid_of(app: Handler, kind: type[LocalGrid] = NamedGrid) -> LocalGrid:
    return kind(app, NODES, RUN)  # type: ignore[arg-type]


def numpy_of(result: Result) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in result.arrays.items()}


def test_the_example_trains_and_scores_under_its_own_server_app(
    quickstart: Callable[[str], ModuleType], app: Handler, capsys: pytest.CaptureFixture[str]
) -> None:
    context = Context(SERVER_ID, SERVER_ID, {}, RecordDict(), RUN)  # type: ignore[arg-type]
    quickstart("server_app").app(grid=grid_of(app, LocalGrid), context=context)
    lines = capsys.readouterr().out.splitlines()
    assert float(lines[0].removeprefix("accuracy ")) > 0.8
    assert [line.partition(",")[0] for line in lines[1:]] == ["2: accepted", "3: accepted", "4: accepted"]


@pytest.mark.parametrize("make", [SpectralFed, SpectralFuse])
def test_scores_are_kept_by_the_names_that_the_superlink_knows(
    make: Callable[..., Strategy], app: Handler, start: ArrayRecord
) -> None:
    strategy = make(num_classes=10)
    result = strategy.start(grid_of(app), start, num_rounds=2)
    assert list(strategy.scores) == ["clinic-1", "clinic-2", "clinic-3"]  # type: ignore[attr-defined]
    rows = strategy.scores.values()  # type: ignore[attr-defined]
    assert sum(row.weight for row in rows) == pytest.approx(1)
    assert all(0 < row.signals["entropy"] < np.log(10) and row.score > 0 for row in rows)
    assert result.train_metrics_clientapp[2]["train-loss"] < result.train_metrics_clientapp[1]["train-loss"]  # type: ignore[operator]
    assert result.evaluate_metrics_clientapp[2]["accuracy"] > 0.5  # type: ignore[operator]
    assert set(result.evaluate_metrics_clientapp[2]) == {"accuracy", "loss"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_array("fc1.bias", np.full(32, np.nan, np.float32)), 'update "fc1.bias" holds NaN'),
        (with_array("fc2.weight", np.zeros((10, 1), np.float32)), 'update "fc2.weight" has shape (10, 1)'),
        (with_array("fc2.weight", np.zeros((10, 32))), 'update "fc2.weight" is float64'),
        (with_array("fc2.bias", None), 'update lacks "fc2.bias"'),
        (with_array("extra", np.zeros(1)), 'update has "extra"'),
        (with_array("norm.running_var", np.full(32, np.inf, np.float32)), 'buffers "norm.running_var" holds'),
        (
            with_array("norm.num_batches_tracked", np.array(1.5)),
            'buffers "norm.num_batches_tracked" is float64',
        ),
        (lambda content: RecordDict({"arrays": content["arrays"]}), "0 metric records"),
        (
            lambda content: RecordDict({**content, "metrics": MetricRecord({"num-examples": -1})}),
            "num-examples is -1",
        ),
        (
            lambda content: RecordDict({**content, "metrics": MetricRecord({"loss": 1.0})}),
            "num-examples is None",
        ),
    ],
)
def test_a_bad_reply_is_quarantined_by_name_and_the_others_train(
    app: Handler, start: ArrayRecord, change: Change, reason: str
) -> None:
    strategy = SpectralFuse(head="fc2.weight", buffers=["norm.running_*"])
    result = strategy.start(grid_of(spoiled(app, 1, change)), start, num_rounds=1)
    assert strategy.scores["clinic-2"].status == "quarantined"
    assert reason in strategy.scores["clinic-2"].reason
    assert [strategy.scores[f"clinic-{i}"].status for i in (1, 3)] == ["accepted"] * 2
    new = numpy_of(result)
    assert list(new) == list(start) and all(np.isfinite(x).all() for x in new.values())
    assert any((new[name] != start[name].numpy()).any() for name in new)


def test_an_app_that_raises_is_an_error_and_a_silent_node_is_missing(
    app: Handler, start: ArrayRecord
) -> None:
    def fails(content: RecordDict) -> RecordDict:
        raise OSError("disk")

    class Silent(NamedGrid):
        def pull_messages(self, message_ids: object) -> list[Message]:
            replies = super().pull_messages(message_ids)  # type: ignore[arg-type]
            return [reply for reply in replies if reply.metadata.src_node_id != SERVER_ID + 3]

    strategy = SpectralFuse(head="fc2.weight")
    strategy.start(grid_of(spoiled(app, 0, fails), Silent), start, num_rounds=1, timeout=0.3)
    assert [row.status for row in strategy.scores.values()] == ["error", "accepted", "missing"]
    assert "0.3 s" in strategy.scores["clinic-3"].reason


def test_with_equal_weights_and_counts_it_is_flowers_own_fedavg(app: Handler, start: ArrayRecord) -> None:
    """1797 digits over 3 nodes: 599 each."""
    ours = from_recipe(UNIFORM, head="fc2.weight").start(grid_of(app), start, num_rounds=2)
    theirs = FedAvg().start(grid_of(app), start, num_rounds=2)
    mine, expected = numpy_of(ours), numpy_of(theirs)
    assert list(mine) == list(expected)
    for name, x in expected.items():
        np.testing.assert_allclose(mine[name], x, rtol=1e-5, atol=1e-6, err_msg=name)
    assert mine["norm.num_batches_tracked"].dtype == np.int64
    for number in (1, 2):
        for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
            a, b = dict(getattr(ours, kind)[number]), dict(getattr(theirs, kind)[number])
            assert a == pytest.approx(b, rel=1e-4)


def test_waiting_for_nodes_ends_and_a_dead_federation_too(app: Handler, start: ArrayRecord) -> None:
    strategy = SpectralFuse(head="fc2.weight", min_available_nodes=5, wait_timeout=0.1)
    before = time.monotonic()
    strategy.start(grid_of(app), start, num_rounds=1)
    assert time.monotonic() - before < 5
    assert len(strategy.scores) == 3

    alone = grid_of(app)
    alone.online.clear()
    lonely = SpectralFuse(head="fc2.weight", wait_timeout=0.0, fraction_evaluate=0.0, max_failed_rounds=2)
    with pytest.raises(RunFailed, match="2 rounds in a row"):
        lonely.start(alone, start, num_rounds=5)


def test_a_part_of_the_nodes_trains_and_no_evaluation_asks_nobody(app: Handler, start: ArrayRecord) -> None:
    strategy = SpectralFuse(head="fc2.weight", fraction_train=0.5, min_train_nodes=1, fraction_evaluate=0.0)
    result = strategy.start(grid_of(app), start, num_rounds=1)
    assert len(strategy.scores) == 2
    assert result.evaluate_metrics_clientapp == {}


def test_with_a_fraction_of_0_a_model_is_evaluated_and_not_trained(app: Handler, start: ArrayRecord) -> None:
    strategy = SpectralFuse(head="fc2.weight", fraction_train=0.0, max_failed_rounds=1)
    result = strategy.start(grid_of(app), start, num_rounds=2)
    assert result.train_metrics_clientapp == {} and strategy.scores == {}
    assert set(result.evaluate_metrics_clientapp) == {1, 2}


def test_an_evaluation_waits_for_its_own_number_of_nodes(app: Handler, start: ArrayRecord) -> None:
    """One that asks for more than training does."""
    grid, waited = grid_of(app), []
    strategy = SpectralFuse(
        head="fc2.weight", min_available_nodes=1, min_train_nodes=1, min_evaluate_nodes=4, wait_timeout=0.0
    )
    strategy.configure_train(1, start, ConfigRecord(), grid)

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            waited.append(record.getMessage())

    handler = Told()
    logging.getLogger("flwr").addHandler(handler)
    try:
        assert len(list(strategy.configure_evaluate(1, start, ConfigRecord(), grid))) == 3
    finally:
        logging.getLogger("flwr").removeHandler(handler)
    assert waited == ["3 of 4 nodes were there within 0 s"]


def test_counts_that_cannot_be_do_not_weigh_in_an_evaluation() -> None:
    def said(count: float, loss: float) -> Message:
        metrics = MetricRecord({"num-examples": count, "loss": loss})
        return Message(RecordDict({"metrics": metrics}), reply_to=Message(RecordDict(), 2, "evaluate"))

    strategy = SpectralFuse(head="fc2.weight")
    with own_identity():
        replies = [
            said(30.0, 1.0),
            said(float("inf"), 9.0),
            said(1e300, 9.0),
            said(10.0, 2.0),
            said(0.1, 1.1),
        ]
    mean = strategy.aggregate_evaluate(1, replies)
    assert mean is not None and mean["loss"] == pytest.approx((30 * 1 + 10 * 2 + 0.1 * 1.1) / 40.1)
    assert all(strategy.aggregate_evaluate(1, order) == mean for order in permutations(replies))


def test_it_works_in_a_loop_of_the_users_own(app: Handler, start: ArrayRecord) -> None:
    strategy, grid, arrays = SpectralFuse(head="fc2.weight"), grid_of(app), start
    for number in (1, 2):
        replies = grid.send_and_receive(strategy.configure_train(number, arrays, ConfigRecord(), grid))
        new, _ = strategy.aggregate_train(number, replies)
        assert new is not None
        arrays = new
    expected = SpectralFuse(head="fc2.weight").start(grid_of(app), start, num_rounds=2)
    for name, x in numpy_of(expected).items():
        np.testing.assert_array_equal(arrays[name].numpy(), x)


def test_a_model_is_written_out_once_for_all_nodes(app: Handler, start: ArrayRecord) -> None:
    grid = grid_of(app)
    strategy = SpectralFuse(head="fc2.weight")
    arrays = start
    for number in (1, 2):
        messages = list(strategy.configure_train(number, arrays, ConfigRecord(), grid))
        sent = [message.content.array_records["arrays"] for message in messages]
        for name in start:
            assert len({id(record[name].data) for record in sent}) == 1 < len(sent)
        new, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
        assert new is not None
        arrays = new


def test_a_recipe_may_send_each_node_a_model_of_its_own(app: Handler, start: ArrayRecord) -> None:
    heard: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}  # (round, node) -> received, returned
    models: dict[int, np.ndarray] = {}
    strategy = from_recipe(replace(UNIFORM, send=Personalised("share")), num_classes=10, fraction_evaluate=0)

    def listen(message: Message, context: Context) -> Message:
        reply = app(message, context)
        both = (m.content.array_records["arrays"]["fc2.weight"].numpy() for m in (message, reply))
        round_ = message.content.config_records["config"]["server-round"]
        heard[int(round_), int(context.node_config["partition-id"])] = (next(both), next(both))  # type: ignore[arg-type]
        return reply

    def look(round_: int, arrays: ArrayRecord) -> None:
        models[round_] = arrays["fc2.weight"].numpy()

    strategy.start(grid_of(listen), start, num_rounds=3, evaluate_fn=look)
    assert all((heard[1, i][0] == models[0]).all() for i in range(3))
    for round_, i in product((2, 3), range(3)):
        mix = 2 / 3 * heard[round_ - 1, i][1] + 1 / 3 * models[round_ - 1]
        assert heard[round_, i][0] == pytest.approx(mix, abs=1e-5)
    # Equal weights and all nodes: the mean of what they returned.
    assert models[3] == pytest.approx(np.mean([heard[3, i][1] for i in range(3)], axis=0), abs=1e-5)


def test_nodes_that_share_a_name_are_told_apart_by_their_ids(app: Handler, start: ArrayRecord) -> None:
    class Twins(LocalGrid):
        def get_nodes(self) -> list[NodeInfo]:  # type: ignore[override]
            return [NodeInfo(node_id=i, name="twin" if i > 2 else "one") for i in self.get_node_ids()]

    strategy = SpectralFuse(head="fc2.weight")
    strategy.start(grid_of(app, Twins), start, num_rounds=1)
    assert list(strategy.scores) == ["3", "4", "one"]


def test_keys_of_records_can_be_named_as_in_fedavg(start: ArrayRecord) -> None:
    def client(message: Message, context: Context) -> Message:
        record = message.content.array_records["w"]
        assert message.content.config_records["c"]["server-round"] == 1
        content = {"any": record, "m": MetricRecord({"rows": 7, "loss": 2.0})}
        return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]

    strategy = SpectralFed(
        head="fc2.weight", arrayrecord_key="w", configrecord_key="c", weighted_by_key="rows"
    )
    result = strategy.start(grid_of(client), start, num_rounds=1)
    assert dict(result.train_metrics_clientapp[1]) == {"loss": 2.0}
    assert [row.weight for row in strategy.scores.values()] == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "no head found"),
        ({"head": "fc2.wieght"}, 'Did you mean "fc2.weight"'),
        ({"head": "fc2.bias"}, "no float array of two or more axes"),
        ({"num_classes": 11}, "got 11"),
        ({"head": "fc2.weight", "buffers": ["bn.*"]}, 'no array is called "bn.*"'),
    ],
)
def test_a_head_or_buffer_that_is_not_there_ends_the_run_with_its_name(
    app: Handler, start: ArrayRecord, options: dict[str, object], says: str
) -> None:
    with pytest.raises(ModelError) as error:
        SpectralFuse(**options).start(grid_of(app), start)  # type: ignore[arg-type]
    assert says in str(error.value)


def test_the_heads_bias_goes_with_it() -> None:
    arrays = {"a.weight": np.zeros((3, 4)), "b.weight": np.zeros((3, 5)), "b.bias": np.zeros(3)}
    assert (find_head(arrays, "", 3).weight, find_head(arrays, "", 3).bias) == ("b.weight", "b.bias")
    assert find_head(arrays, "a.weight", 0).bias is None


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_folder_runs_on_a_server_and_two_nodes(tmp_path: Path) -> None:
    with ExitStack() as stack:
        fleet, control, *ports = (Address(LOOPBACK, stack.enter_context(reserve_port())) for _ in range(4))
        warm, path = spawn_warm(tmp_path)
        stack.callback(children.stop, warm)
        server = spawn_server(
            tmp_path / "server", fleet, control, environment=path, log=tmp_path / "server.log"
        )
        stack.callback(children.stop, [server.process])
        for i, port in enumerate(ports):
            config = {"name": f"node-{i}", "partition-id": i, "num-partitions": 2}
            node = spawn_node(
                tmp_path / f"node-{i}",
                fleet,
                port.port,
                config,
                environment=path,
                log=tmp_path / f"node-{i}.log",
            )
            stack.callback(children.stop, [node])
        wait_ready(server)
        way = runs.Control(control, None, tmp_path / "control")
        run = runs.submit(way, EXAMPLE, {"num-server-rounds": 2})
        lines = [line.strip() for line in runs.log_lines(way, run)]
        assert runs.status(way, run).state == "finished:completed", "\n".join(lines)
    told = [line for line in lines if ": accepted, weight 0." in line]
    assert len(told) == 2 and all(line.partition(":")[0].isdecimal() for line in told)
    (accuracy,) = [line for line in lines if line.startswith("accuracy ")]
    assert float(accuracy.split()[1]) > 0.5
