"""Who a node is: one node for each name, and the name that its key is enrolled under."""

import json

import pytest
from flwr.app import ConfigRecord, Context, Message
from flwr.proto.node_pb2 import NodeInfo

from common.ledger import Joined
from common.messages import CARD
from specfed.local_grid import LocalGrid
from tests.federation import Federation, Handler
from tests.server_app.misfits.grids import Around


def test_a_second_node_of_one_name_is_refused_and_told_so(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [*federation.nodes(), federation.node("site-1", range(10))]
    run = federation.run(nodes=nodes)
    assert len(run.header.nodes) == 3
    assert run.header.nodes[0].examples == 54
    assert any('a second node called "site-1"' in getattr(r, "refused", "") for r in run.records)
    told = 'a run turned this node away: a second node called "site-1"; each site needs a name of its own'
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == [told]


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


@pytest.mark.parametrize("name", ["a/b", "", "x\ny", "9" * 5000, "\ud800"])
def test_a_node_has_a_name_that_a_configuration_may_give(federation: Federation, name: str) -> None:
    def renamed(app: Handler) -> Handler:
        def handler(message: Message, context: Context) -> Message:
            reply = app(message, context)
            if context.node_config["name"] == "site-3" and CARD in reply.content.config_records:
                card = json.loads(str(reply.content.config_records[CARD]["json"]))
                reply.content[CARD] = ConfigRecord({"json": json.dumps(card | {"name": name})})
            return reply

        return handler

    run = federation.run(wrap=renamed, rounds=1)
    assert run.error is None and {client.client for client in run.clients()} == {"site-1", "site-2"}
    (refused,) = [record.refused for record in run.records if isinstance(record, Joined)]
    assert "a node's answer to hello is not one of this version" in refused and refused.isprintable()


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
