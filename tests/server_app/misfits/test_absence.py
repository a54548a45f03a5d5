"""Nodes that are silent, late, or away for a while."""

from collections.abc import Callable

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


def moving(**online: set[int]) -> Callable[[LocalGrid], Grid]:
    """Nodes 2 and 3 are online at first, and others once the messages of a round are out (``after_1``, ...)."""

    class Moving(Around):
        def push_messages(self, messages: list[Message]) -> list[str]:
            ids = self.grid.push_messages(messages)
            round_ = max(m.metadata.group_id for m in messages)
            self.grid.online = online.get(f"after_{round_}", self.grid.online)
            return ids

    def start(grid: LocalGrid) -> Grid:
        grid.online = {2, 3}
        return Moving(grid)  # type: ignore[return-value]

    return start


def test_a_node_may_come_late_leave_and_return_under_its_name(federation: Federation) -> None:
    nodes = federation.nodes(3)
    run = federation.run(
        nodes=nodes, wrap_grid=moving(after_1={2, 3, 4}, after_2={3, 4}, after_3={2, 3, 4}), rounds=4
    )
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

    run = federation.run(nodes=nodes, wrap_grid=moving(after_1={2, 3, 4}))
    (refused,) = [r.refused for r in run.records if isinstance(r, Joined)]
    assert refused.startswith("site-3 does not name its classes or columns as site-1 does")
    assert run.error is None and {c.client for c in run.clients()} == {"site-1", "site-2"}
