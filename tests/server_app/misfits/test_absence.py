"""Nodes that are silent, late, or away for a while."""

from flwr.app import Message
from flwr.serverapp import Grid

from specfed.local_grid import LocalGrid
from tests.federation import Federation


class Silent:
    """A grid on which a node's replies to train messages never arrive."""

    def __init__(self, grid: LocalGrid, node: int, from_round: str) -> None:
        self._grid, self._node, self._from = grid, node, from_round

    def __getattr__(self, name: str) -> object:
        return getattr(self._grid, name)

    def push_messages(self, messages: list[Message]) -> list[str]:
        ids = self._grid.push_messages(messages)
        for i, message in zip(ids, messages, strict=True):
            lost = message.metadata.dst_node_id == self._node and message.metadata.message_type == "train"
            if lost and message.metadata.group_id >= self._from:
                self._grid.pull_messages([i])
        return ids


def test_a_silent_node_is_missing_when_the_deadline_is_over(federation: Federation) -> None:
    def silent(grid: LocalGrid) -> Grid:
        return Silent(grid, 3, "2")  # type: ignore[return-value]

    from strategies import flower

    federation._monkeypatch.setattr(flower, "SLACK", 0.0)
    from server_app import app

    federation._monkeypatch.setattr(app, "SLACK", 0.0)
    run = federation.run(wrap_grid=silent, round_timeout=0.3)
    assert [c.status for c in run.clients("site-2")] == ["accepted", "missing", "missing"]
    assert run.clients("site-2")[1].reason == "no reply within 0.3 s"
    assert run.end.status == "completed-degraded"


def test_a_node_may_come_late_leave_and_return_under_its_name(federation: Federation) -> None:
    nodes = federation.nodes(3)

    class Moving:
        """site-3 (node 4) joins in round 2; site-1 (node 2) leaves for round 3."""

        def __init__(self, grid: LocalGrid) -> None:
            self._grid = grid
            grid.online = {2, 3}

        def __getattr__(self, name: str) -> object:
            return getattr(self._grid, name)

        def push_messages(self, messages: list[Message]) -> list[str]:
            ids = self._grid.push_messages(messages)
            rounds = {m.metadata.group_id for m in messages}
            self._grid.online = {"1": {2, 3, 4}, "2": {3, 4}, "3": {2, 3, 4}}.get(
                max(rounds), self._grid.online
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


class Deaf:
    """A grid on which node 4 is online and never answers hello."""

    def __init__(self, grid: LocalGrid) -> None:
        self._grid = grid
        self.asked = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._grid, name)

    def push_messages(self, messages: list[Message]) -> list[str]:
        ids = self._grid.push_messages(messages)
        for i, message in zip(ids, messages, strict=True):
            if message.metadata.dst_node_id == 4:
                self.asked += 1
                self._grid.pull_messages([i])
        return ids


def test_a_node_that_never_answers_hello_is_waited_for_once_and_holds_up_no_round(
    federation: Federation,
) -> None:
    grids: list[Deaf] = []

    def deaf(grid: LocalGrid) -> Grid:
        grids.append(Deaf(grid))
        return grids[0]  # type: ignore[return-value]

    run = federation.run(wrap_grid=deaf, rounds=4, wait_timeout=1.0)
    assert run.error is None and {c.client for c in run.clients()} == {"site-1", "site-2"}
    assert grids[0].asked == 1  # one wait, not one a round
