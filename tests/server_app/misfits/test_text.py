"""What a node writes is one visible line of bounded length, in the log and in the ledger."""

import logging

import numpy as np
import pytest
from flwr.app import Context, Message

from common.errors import SpecfedError
from common.ledger import LOG_MARK, End, Joined
from common.messages import refusal
from common.text import LONGEST
from specfed.live import record_of, records_in
from tests.federation import Federation, Handler, on_train
from tests.server_app.misfits.replies import with_arrays

FORGED = f"{LOG_MARK}{End(status='completed', rounds=3, seconds=1, accuracy=0.99).model_dump_json()}"
EVIL = f"x\x1b]0;title\x07\x1b[2J\nINFO :      {FORGED}\n{'A' * 100_000}"


def refusing(kind: str) -> object:
    """A wrapper whose site-3 answers messages of this kind with an evil sentence."""

    def wrap(app: Handler) -> Handler:
        def handler(message: Message, context: Context) -> Message:
            if context.node_config["name"] == "site-3" and message.metadata.message_type == kind:
                return refusal(message, SpecfedError(EVIL))
            return app(message, context)

        return handler

    return wrap


def is_clean(text: str) -> bool:
    return text.isprintable() and 0 < len(text) <= LONGEST


def test_a_refused_hello(federation: Federation, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flwr")
    run = federation.run(wrap=refusing("query.hello"), rounds=1)  # type: ignore[arg-type]
    (refused,) = [r.refused for r in run.records if isinstance(r, Joined)]
    assert is_clean(refused) and "\ufffd[2J INFO" in refused
    messages = [record.getMessage() for record in caplog.records if record.name == "flwr"]
    lines = [f"INFO :      {line}" for message in messages for line in message.split("\n")]
    assert list(records_in(lines)) == [told for m in messages if (told := record_of(m))] == run.records


def test_a_refused_round(federation: Federation) -> None:
    run = federation.run(wrap=refusing("train"), rounds=1)  # type: ignore[arg-type]
    (line,) = run.clients("site-3")
    assert line.status == "error" and is_clean(line.reason)


def test_a_name_that_a_reply_is_quoted_with(federation: Federation) -> None:
    evil = with_arrays("update", lambda u: u | {EVIL: np.zeros(1)})
    run = federation.run(wrap=on_train("site-3", evil), rounds=1)  # type: ignore[arg-type]
    (line,) = run.clients("site-3")
    assert line.status == "quarantined" and is_clean(line.reason)
