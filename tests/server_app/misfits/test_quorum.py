"""Too few usable replies, or nodes: the run ends with one sentence."""

from flwr.app import Message
from flwr.serverapp import Grid

from common.errors import RunFailed
from specfed.local_grid import LocalGrid
from tests.federation import Federation, on_train
from tests.server_app.misfits.replies import BAD


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
    assert isinstance(run.error, RunFailed) and "no round moved the model" in run.end.reason


def test_too_few_nodes_end_the_wait(federation: Federation) -> None:
    run = federation.run(nodes=federation.nodes(1), min_nodes=2)
    assert isinstance(run.error, RunFailed) and run.end.reason.startswith(
        "1 of 2 nodes (min-nodes) were there"
    )


def test_a_node_without_data_is_told_and_the_run_says_which(federation: Federation) -> None:
    nodes = [federation.node("site-1"), {"name": "site-2"}]
    run = federation.run(nodes=nodes)
    assert isinstance(run.error, RunFailed)
    assert "1 of 2 nodes (min-nodes)" in run.end.reason and "this node has no data" in run.end.reason


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
