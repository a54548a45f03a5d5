"""Nodes that are silent, late, or away for a while."""

from flwr.app import Message, Metadata
from flwr.serverapp import Grid

from common.ledger import Joined
from specfed.local_grid import LocalGrid
from tests.federation import Federation
from tests.server_app.misfits.grids import Around, Losing


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


def test_who_comes_late_with_other_names_of_classes_is_refused(federation: Federation) -> None:
    named = "tests.federation:named_"
    nodes = [federation.node(f"site-{i}", data=f"{named}{1 if i < 3 else 2}") for i in (1, 2, 3)]

    class Late(Around):
        """site-3 (node 4) joins in round 2."""

        def __init__(self, grid: LocalGrid) -> None:
            super().__init__(grid)
            grid.online = {2, 3}

        def push_messages(self, messages: list[Message]) -> list[str]:
            ids = self.grid.push_messages(messages)
            self.grid.online |= {4} if any(m.metadata.group_id == "1" for m in messages) else set()
            return ids

    run = federation.run(nodes=nodes, wrap_grid=Late)  # type: ignore[arg-type]
    (refused,) = [r.refused for r in run.records if isinstance(r, Joined)]
    assert refused.startswith("site-3 does not name its classes as site-1 does")
    assert run.error is None and {c.client for c in run.clients()} == {"site-1", "site-2"}
