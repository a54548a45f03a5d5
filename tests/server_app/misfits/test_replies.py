"""A bad reply is named and left out; the run goes on. Never a NaN model."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message
from safetensors.numpy import load_file

from common.errors import RunFailed
from tests.federation import Federation, Handler, on_train
from tests.server_app.misfits.replies import BAD


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
