"""What nodes tell of their own scores need not be true, and a report need not succeed."""

import logging

import pytest
from flwr.app import Context, Message

from tests.federation import Federation, Handler


def telling(kind: str, **metrics: float) -> object:
    """A wrapper whose site-2 says these numbers in its replies to messages of a kind."""

    def wrap(app: Handler) -> Handler:
        def handler(message: Message, context: Context) -> Message:
            reply = app(message, context)
            if context.node_config["name"] == "site-2" and message.metadata.message_type == kind:
                said = {name.replace("_", "-"): value for name, value in metrics.items()}
                reply.content.metric_records["metrics"].update(said)
            return reply

        return handler

    return wrap


def without(kind: str) -> object:
    """A wrapper whose site-2 says nothing of its score."""

    def wrap(app: Handler) -> Handler:
        def handler(message: Message, context: Context) -> Message:
            reply = app(message, context)
            if context.node_config["name"] == "site-2" and message.metadata.message_type == kind:
                reply.content.metric_records["metrics"].pop("accuracy-before")
            return reply

        return handler

    return wrap


@pytest.mark.parametrize(
    "metrics",
    [
        {"accuracy_before": 93.1},
        {"accuracy_before": 1e308},
        {"loss_before": -5.0},
        {"validation_examples": 9_000_000_000_000_000_000, "accuracy_before": 1.0},
    ],
)
def test_a_score_of_a_round_that_cannot_be_is_noted_and_not_used(
    federation: Federation, metrics: dict[str, float]
) -> None:
    run = federation.run(wrap=telling("train", **metrics), eval_data="")  # type: ignore[arg-type]
    others = federation.run("others", wrap=without("train"), eval_data="")  # type: ignore[arg-type]
    assert [(r.accuracy, r.loss) for r in run.rounds] == [(r.accuracy, r.loss) for r in others.rounds]
    assert all("site-2's own score is not believed" in r.reason and r.moved for r in run.rounds)
    assert run.error is None and run.end.status == "completed" and (run.folder / "report.html").exists()


def test_a_score_of_the_last_model_that_cannot_be_degrades_the_run(federation: Federation) -> None:
    run = federation.run(wrap=telling("evaluate", loss=float("nan")), eval_data="", rounds=1)  # type: ignore[arg-type]
    assert run.error is None and run.end.status == "completed-degraded"
    assert "site-2's own score is not believed" in run.end.reason and run.end.loss is not None


def test_a_report_that_fails_leaves_the_run_completed(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(folder: object) -> None:
        raise ZeroDivisionError("no axis")

    monkeypatch.setattr("server_app.books.write_report", failing)
    caplog.set_level(logging.ERROR, "flwr")
    run = federation.run(rounds=1)
    assert run.error is None and run.end.status == "completed"
    assert f"(ZeroDivisionError: no axis); 'specfed report {run.folder}' tries again" in caplog.text
