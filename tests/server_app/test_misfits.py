"""Nodes that lie, break, vanish or do not fit: the run goes on, or ends with one sentence. Never a NaN model."""

from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, Metadata
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from safetensors.numpy import load_file

from common.errors import DataError, ModelError, RunFailed
from specfed.local_grid import LocalGrid
from tests.federation import Federation, Handler, on_train

Change = Callable[[Message, int], Message]


def with_arrays(record: str, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Change:
    def on_reply(reply: Message, _: int) -> Message:
        arrays = {name: array.numpy() for name, array in reply.content.array_records[record].items()}
        changed = {name: Array(value) for name, value in change(arrays).items()}
        reply.content[record] = ArrayRecord(changed)
        return reply

    return on_reply


def with_examples(value: object) -> Change:
    def on_reply(reply: Message, _: int) -> Message:
        reply.content.metric_records["metrics"]["num-examples"] = value  # type: ignore[assignment]
        return reply

    return on_reply


def without_record(name: str) -> Change:
    def on_reply(reply: Message, _: int) -> Message:
        del reply.content[name]
        return reply

    return on_reply


def garbage(reply: Message, _: int) -> Message:
    reply.content.array_records["update"]["0.bias"].data = b"not an array"
    return reply


def raising(reply: Message, _: int) -> Message:
    raise RuntimeError("boom on purpose")


BAD = {
    "nan": (with_arrays("update", lambda u: u | {"0.bias": u["0.bias"] * np.nan}), "holds NaN or infinity"),
    "shape": (
        with_arrays("update", lambda u: u | {"0.bias": u["0.bias"][:1]}),
        "has shape (1,); it takes (48,)",
    ),
    "type": (with_arrays("update", lambda u: u | {"0.bias": u["0.bias"].astype("f8")}), "it takes float32"),
    "missing": (
        with_arrays("update", lambda u: {k: v for k, v in u.items() if k != "0.bias"}),
        'lacks "0.bias"',
    ),
    "extra": (with_arrays("update", lambda u: u | {"x": u["0.bias"]}), 'has "x", which the model has not'),
    "count": (with_examples(10**12), "num-examples is 1000000000000"),
    "negative": (with_examples(-150), "num-examples is -150"),
    "no update": (without_record("update"), "has no record 'update'"),
    "garbage": (garbage, "cannot be read"),
    "raises": (raising, "boom on purpose"),
}


@pytest.mark.parametrize("kind", BAD)
def test_one_bad_reply_is_named_and_changes_nothing(federation: Federation, kind: str) -> None:
    change, sentence = BAD[kind]
    run = federation.run("bad", wrap=on_train("site-2", change), weighting="uniform")  # type: ignore[arg-type]
    assert run.error is None and run.end.status == "completed-degraded"
    for line in run.clients("site-2"):
        assert line.status == ("error" if kind == "raises" else "quarantined")
        assert sentence in line.reason and line.weight is None
    assert [r.accepted for r in run.rounds] == [2, 2, 2]
    without = federation.run(
        "good", nodes=[federation.node("site-1"), federation.node("site-3")], weighting="uniform"
    )
    assert run.model_bytes == without.model_bytes
    assert all(np.isfinite(a).all() for a in load_file(run.folder / "model.safetensors").values())


def test_a_node_that_is_bad_once_comes_back(federation: Federation) -> None:
    change, _ = BAD["nan"]
    run = federation.run(wrap=on_train("site-1", change, rounds=[2]), rounds=3)  # type: ignore[arg-type]
    assert [c.status for c in run.clients("site-1")] == ["accepted", "quarantined", "accepted"]


def test_a_diverging_node_says_in_which_step(federation: Federation) -> None:
    run = federation.run(learning_rate=1e30, rounds=1, max_failed_rounds=1)
    assert isinstance(run.error, RunFailed)
    assert "the loss became" in run.clients()[0].reason and "in local step" in run.clients()[0].reason


class Around:
    """A grid that does what another one does, but for what a subclass changes."""

    def __init__(self, grid: LocalGrid) -> None:
        self.grid = grid

    def __getattr__(self, name: str) -> object:
        return getattr(self.grid, name)


class Losing(Around):
    """A grid on which replies to some messages never arrive; ``lost`` counts them."""

    def __init__(self, grid: LocalGrid, loses: Callable[[Metadata], bool]) -> None:
        super().__init__(grid)
        self.loses, self.lost = loses, 0

    def push_messages(self, messages: list[Message]) -> list[str]:
        ids = self.grid.push_messages(messages)
        gone = [i for i, message in zip(ids, messages, strict=True) if self.loses(message.metadata)]
        self.grid.pull_messages(gone)
        self.lost += len(gone)
        return ids


def test_a_silent_node_is_missing_when_the_deadline_is_over(federation: Federation) -> None:
    def to_node_3_from_round_2(message: Metadata) -> bool:
        return message.dst_node_id == 3 and message.message_type == "train" and message.group_id >= "2"

    def silent(grid: LocalGrid) -> Grid:
        return Losing(grid, to_node_3_from_round_2)  # type: ignore[return-value]

    from strategies import flower

    federation._monkeypatch.setattr(flower, "SLACK", 0.0)
    from server_app import app

    federation._monkeypatch.setattr(app, "SLACK", 0.0)
    run = federation.run(wrap_grid=silent, round_timeout=0.3)
    assert [c.status for c in run.clients("site-2")] == ["accepted", "missing", "missing"]
    assert run.clients("site-2")[1].reason == "no reply within 0.3 s"
    assert run.end.status == "completed-degraded"


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([0, 180], "names row 180, but the data have 180 rows"),
        ([-1, 3], "names row -1, but the data have 180 rows"),
        ([], "it takes row numbers, at least one"),
    ],
)
def test_a_node_with_rows_that_are_none_is_refused(
    federation: Federation, rows: list[int], sentence: str
) -> None:
    nodes = [*federation.nodes(2), federation.node("site-3", rows)]
    run = federation.run(nodes=nodes, rounds=1)
    assert run.error is None and {c.client for c in run.clients()} == {"site-1", "site-2"}
    assert sentence in str(run.records)


def test_a_run_whose_nodes_are_all_gone_ends(federation: Federation) -> None:
    def leave(reply: Message, _: int) -> Message:
        grids[0].online.clear()
        return reply

    grids: list[LocalGrid] = []

    def noted(grid: LocalGrid) -> Grid:
        grids.append(grid)
        return grid

    run = federation.run(wrap=on_train("site-3", leave), wrap_grid=noted)  # type: ignore[arg-type]
    assert isinstance(run.error, RunFailed)
    assert str(run.error) == "all nodes are gone, and none came back within 0.3 s"


def test_too_few_usable_replies_leave_the_model_and_end_the_run(federation: Federation) -> None:
    change, _ = BAD["nan"]
    run = federation.run(
        wrap=on_train("site-1", change, rounds=[2, 3, 4]),  # type: ignore[arg-type]
        rounds=9,
        min_replies=3,
        min_nodes=3,
        max_failed_rounds=3,
        keep_checkpoints=9,
    )
    assert isinstance(run.error, RunFailed)
    assert run.end.status == "failed" and run.end.error == "RunFailed"
    assert "3 rounds in a row" in run.end.reason and "site-1" in run.end.reason
    assert [r.moved for r in run.rounds] == [True, False, False, False]
    assert "2 usable replies of 3" in run.rounds[1].reason
    first = (run.folder / "checkpoints/round-0001/model.safetensors").read_bytes()
    assert run.model_bytes == first
    assert (run.folder / "report.html").exists()


def test_a_run_that_never_moved_its_model_has_failed(federation: Federation) -> None:
    change, _ = BAD["nan"]
    nodes = [federation.node("site-1"), federation.node("site-2")]
    run = federation.run(
        wrap=on_train("site-1", change),  # type: ignore[arg-type]
        nodes=nodes,
        min_replies=2,
        rounds=2,
    )
    assert isinstance(run.error, RunFailed) and "no round had enough" in run.end.reason


def test_a_second_node_of_one_name_is_refused(federation: Federation) -> None:
    nodes = [*federation.nodes(), federation.node("site-1", range(10))]
    run = federation.run(nodes=nodes)
    assert len(run.header.nodes) == 3
    assert run.header.nodes[0].examples == 54
    assert any('a second node called "site-1"' in getattr(r, "refused", "") for r in run.records)


def test_nodes_with_different_classes_do_not_start(federation: Federation) -> None:
    nodes = [
        federation.node("site-1"),
        federation.node("site-2", range(30), data="tests.federation:three_classes"),
    ]
    run = federation.run(nodes=nodes)
    assert isinstance(run.error, DataError)
    assert run.end.reason == (
        "the nodes' data do not fit together: site-1 has 4 classes and inputs of 6, "
        "but site-2 has 3 classes and inputs of 6"
    )


def test_a_node_without_data_is_told_and_the_run_says_which(federation: Federation) -> None:
    nodes = [federation.node("site-1"), {"name": "site-2"}]
    run = federation.run(nodes=nodes)
    assert isinstance(run.error, RunFailed)
    assert "1 of 2 nodes (min-nodes)" in run.end.reason and "this node has no data" in run.end.reason


def test_too_few_nodes_end_the_wait(federation: Federation) -> None:
    run = federation.run(nodes=federation.nodes(1), min_nodes=2)
    assert isinstance(run.error, RunFailed) and run.end.reason.startswith(
        "1 of 2 nodes (min-nodes) were there"
    )


@pytest.mark.parametrize(
    ("config", "error", "sentence"),
    [
        ({"model": "tests.federation:headless_net"}, ModelError, "head"),
        ({"head": "2.wieght"}, ModelError, '"2.weight"'),
        ({"model": "cnn6"}, ModelError, '"cnn5"'),
        ({"eval_data": "tests.federation:three_classes"}, DataError, "3 classes"),
        ({"eval_data": "nowhere.npz"}, DataError, "nowhere.npz"),
        (
            {"weighting": "fedlaw", "proxy_data": "tests.federation:three_classes"},
            DataError,
            "proxy-data tests.federation:three_classes has 3 classes",
        ),
    ],
)
def test_a_run_that_cannot_start_says_why(
    federation: Federation, config: dict[str, str], error: type[Exception], sentence: str
) -> None:
    run = federation.run(**config)
    assert isinstance(run.error, error)
    assert sentence in run.end.reason and run.end.status == "failed"


def test_a_foreign_error_keeps_its_text_on_the_node(federation: Federation) -> None:
    def failing(app: Handler) -> Handler:
        def handler(message: Message, context: Context) -> Message:
            if context.node_config["name"] == "site-2" and message.metadata.message_type == "train":
                message.content["arrays"] = ArrayRecord({})
            return app(message, context)

        return handler

    run = federation.run(wrap=failing)
    reason = run.clients("site-2")[0].reason
    assert (
        "KeyError at" in reason and "its text stays in the node's log" in reason and "0.weight" not in reason
    )


def test_a_node_may_come_late_leave_and_return_under_its_name(federation: Federation) -> None:
    nodes = federation.nodes(3)

    class Moving(Around):
        """site-3 (node 4) joins in round 2; site-1 (node 2) leaves for round 3."""

        def __init__(self, grid: LocalGrid) -> None:
            super().__init__(grid)
            grid.online = {2, 3}

        def push_messages(self, messages: list[Message]) -> list[str]:
            ids = self.grid.push_messages(messages)
            rounds = {m.metadata.group_id for m in messages}
            self.grid.online = {"1": {2, 3, 4}, "2": {3, 4}, "3": {2, 3, 4}}.get(
                max(rounds), self.grid.online
            )
            return ids

    run = federation.run(nodes=nodes, wrap_grid=Moving, rounds=4)  # type: ignore[arg-type]
    took_part = {n: [c.client for c in run.clients() if c.round == n] for n in (1, 2, 3, 4)}
    assert took_part == {
        1: ["site-1", "site-2"],
        2: ["site-1", "site-2", "site-3"],
        3: ["site-2", "site-3"],
        4: ["site-1", "site-2", "site-3"],
    }
    std = {(c.round, c.client): c.score_std for c in run.clients()}
    assert std[4, "site-1"] > std[4, "site-2"]  # type: ignore[operator]
    assert run.end.status == "completed"


def test_nonsense_in_place_of_a_nodes_own_scores_is_left_out(federation: Federation) -> None:
    def liar(app: Handler) -> Handler:
        def handler(message: Message, context: Context) -> Message:
            reply = app(message, context)
            kind = message.metadata.message_type
            if context.node_config["name"] == "site-2" and kind == "train":
                reply.content.metric_records["metrics"]["accuracy-before"] = float("nan")
            if context.node_config["name"] == "site-1" and kind == "evaluate":
                del reply.content["metrics"]
            return reply

        return handler

    run = federation.run(wrap=liar, eval_data="")
    assert run.error is None and run.end.status == "completed"
    assert run.rounds[0].accuracy == pytest.approx(
        np.mean([c.accuracy_before for c in run.clients() if c.round == 1 and c.client != "site-2"])  # type: ignore[arg-type]
    )
    assert run.end.accuracy is not None  # site-3's alone


def test_a_node_that_never_answers_hello_is_waited_for_once_and_holds_up_no_round(
    federation: Federation,
) -> None:
    grids: list[Losing] = []

    def deaf(grid: LocalGrid) -> Grid:
        grids.append(Losing(grid, lambda message: message.dst_node_id == 4))
        return grids[0]  # type: ignore[return-value]

    run = federation.run(wrap_grid=deaf, rounds=4, wait_timeout=1.0)
    assert run.error is None and {c.client for c in run.clients()} == {"site-1", "site-2"}
    assert grids[0].lost == 1  # one wait, not one a round


class Enrolled(Around):
    """A grid whose server knows some nodes by an enrolled name, by node id."""

    def __init__(self, grid: LocalGrid, names: dict[int, str]) -> None:
        super().__init__(grid)
        self._names = names

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=i, name=self._names.get(i, "")) for i in self.grid.get_node_ids()]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (
            {2: "site-1", 3: "site-2", 4: "site-9"},
            'a node called "site-3" has the key enrolled as "site-9"; the two names must be the same',
        ),
        (
            {2: "site-3", 3: "site-2"},
            'a node called "site-1" has the key enrolled as "site-3"; the two names must be the same',
        ),
        (
            {2: "site-1", 3: "site-3"},
            'a node called "site-3" has no enrolled key, but that name is enrolled',
        ),
    ],
)
def test_a_node_is_who_its_key_says(federation: Federation, names: dict[int, str], reason: str) -> None:
    run = federation.run(wrap_grid=lambda grid: Enrolled(grid, names), min_nodes=1)  # type: ignore[arg-type,return-value]
    assert run.error is None
    assert reason in [getattr(record, "refused", "") for record in run.records]
    told = {i: f"site-{i - 1}" for i in (2, 3, 4)}
    fits = {
        name
        for i, name in told.items()
        if names.get(i) == name or (i not in names and name not in names.values())
    }
    assert {client.client for client in run.clients()} == fits


def test_a_node_that_was_refused_may_come_back_with_its_right_name(federation: Federation) -> None:
    """Its node id belongs to its key and stays; it was away, so that it is asked for its name again."""
    nodes = [federation.node("site-1"), federation.node("site-2"), federation.node("site-7", range(3))]

    class Corrected(Enrolled):
        def push_messages(self, messages: list[Message]) -> list[str]:
            ids = self.grid.push_messages(messages)
            rounds = max(m.metadata.group_id for m in messages)
            if rounds == "1":
                self.grid.online = {2, 3}
            if rounds == "2":
                self.grid.online = {2, 3, 4}
                self.grid.contexts[4].node_config["name"] = "site-3"
            return ids

    names = {2: "site-1", 3: "site-2", 4: "site-3"}
    run = federation.run(
        nodes=nodes,
        wrap_grid=lambda grid: Corrected(grid, names),  # type: ignore[arg-type,return-value]
        rounds=4,
        min_nodes=2,
    )
    assert 'a node called "site-7" has the key enrolled as "site-3"' in str(run.records)
    assert [c.round for c in run.clients("site-3")] == [3, 4] and run.clients("site-7") == []


def test_a_site_that_came_back_too_early_takes_its_place_once_its_old_node_is_gone(
    federation: Federation,
) -> None:
    nodes = [federation.node("site-1"), federation.node("site-2"), federation.node("site-2")]

    class Slow(Around):
        """The server takes node 3 for online until round 2, though it is node 4 that has come back."""

        def push_messages(self, messages: list[Message]) -> list[str]:
            ids = self.grid.push_messages(messages)
            if max(m.metadata.group_id for m in messages) == "2":
                self.grid.online = {2, 4}
            return ids

    run = federation.run(
        nodes=nodes,
        wrap_grid=lambda grid: Slow(grid),  # type: ignore[arg-type,return-value]
        rounds=4,
        min_nodes=2,
    )
    assert 'a second node called "site-2"' in str(run.records)
    turns = [(c.round, c.status) for c in run.clients("site-2")]
    assert turns[:2] == [(1, "accepted"), (2, "accepted")] and turns[-1] == (4, "accepted")
