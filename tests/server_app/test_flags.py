"""A free-rider in a whole run: who is flagged, by which test, and what the books say of it."""

import numpy as np

from common.ledger import ClientRecord, Flag
from server_app.bookkeeping import suspects_in
from tests.federation import Federation


def test_ten_rows_that_claim_to_be_three_hundred_are_flagged_by_their_rank(federation: Federation) -> None:
    nodes = [federation.node(f"site-{i}", range(300 * (i - 1), 300 * i), data="digits") for i in range(1, 4)]
    nodes.append(federation.node("site-4", np.tile(np.arange(1200, 1210), 30), data="digits"))
    run = federation.run(nodes=nodes, model="mlp4", learning_rate=0.05, eval_data="digits", seed=1)
    assert run.error is None
    for line in run.clients():
        assert [flag.test for flag in line.flags] == (["first-layer-rank"] if line.client == "site-4" else [])
        assert line.weight is not None and line.weight > 0  # a flag changes no weight
    (suspect,) = run.end.suspects
    assert suspect.client == "site-4"
    assert "N distinct examples" in suspect.text and "flagged in 3 rounds, the last one 3" in suspect.text
    assert "first-layer-rank" in (run.folder / "report.html").read_text()


def test_a_run_with_a_convolution_has_no_such_flags(federation: Federation) -> None:
    nodes = [federation.node(f"site-{i}", range(20 * i, 20 * i + 20), data="digits") for i in range(1, 4)]
    nodes[0] = federation.node("site-1", [5] * 20, data="digits")
    run = federation.run(nodes=nodes, model="cnn5", rounds=1, eval_data="digits")
    assert run.error is None and not any(line.flags for line in run.clients())


def test_a_suspects_text_holds_each_tests_latest_evidence_with_its_own_rounds() -> None:
    def flag(test: str, text: str) -> Flag:
        return Flag(test=test, value=1, threshold=2, text=text)

    low, few = flag("robust-z", "low share"), flag("first-layer-rank", "rank 8")
    records = [
        ClientRecord(round=1, client="b", status="accepted", flags=(flag("first-layer-rank", "rank 9"),)),
        ClientRecord(round=2, client="b", status="accepted", flags=(low, few)),
        ClientRecord(round=2, client="a", status="accepted"),
    ]
    (suspect,) = suspects_in(records)
    assert suspect.client == "b"
    assert suspect.text == (
        "rank 8; flagged in 2 rounds, the last one 2; low share; flagged in 1 round, the last one 2"
    )
