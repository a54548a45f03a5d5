"""A free-rider in a whole run: who is flagged, by which test, and what the books say of it."""

import numpy as np
import pytest

from common.config import Value
from common.errors import ModelError
from common.ledger import ClientRecord, Flag
from common.messages import UPDATE, Message, pack, unpack
from server_app.bookkeeping import suspects_in
from server_app.folder import load_state
from specfed.experiments.attacks import ATTACKS, Attackers, Memory
from tests.federation import Federation, Handler, Run, on_train


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


SITES = [f"site-{i}" for i in range(1, 5)]


def flat_from(first: int) -> object:
    """From this round on site-4 sends an update whose first layer has a rank of 3."""

    def flatten(reply: Message, number: int) -> Message:
        update = unpack(reply.content.array_records[UPDATE])
        name = next(iter(update))
        u, s, v = np.linalg.svd(update[name], full_matrices=False)
        update[name] = ((u[:, :3] * s[:3]) @ v[:3]).astype(np.float32)
        reply.content[UPDATE] = pack(update)
        return reply

    return on_train("site-4", flatten, range(first, 9))


def test_a_high_rank_is_remembered_also_by_a_run_that_goes_on(federation: Federation) -> None:
    nodes = [federation.node(f"site-{i}", range(i - 1, 1200, 4), data="digits") for i in range(1, 5)]
    keys: dict[str, Value] = {"model": "mlp4", "learning_rate": 0.05, "eval_data": "digits"}

    def flagged(run: Run) -> list[int]:
        assert run.error is None
        return [c.round for c in run.clients() if any(f.test == "first-layer-rank" for f in c.flags)]

    assert flagged(federation.run("low", nodes, wrap=flat_from(1), **keys)) == [1, 2, 3]
    assert flagged(federation.run("later", nodes, wrap=flat_from(2), **keys)) == []
    federation.run("cut", nodes, rounds=1, **keys)
    assert flagged(federation.run("on", nodes, wrap=flat_from(2), resume="cut", rounds=3, **keys)) == []


def test_a_run_with_a_convolution_has_no_such_flags(federation: Federation) -> None:
    nodes = [federation.node(f"site-{i}", range(20 * i, 20 * i + 20), data="digits") for i in range(1, 4)]
    nodes[0] = federation.node("site-1", [5] * 20, data="digits")
    run = federation.run(nodes=nodes, model="cnn5", rounds=1, eval_data="digits")
    assert run.error is None and not any(line.flags for line in run.clients())


@pytest.mark.parametrize(("guards", "told"), [("observe", True), ("weight", True), ("off", False)])
def test_a_run_says_where_its_guards_are_blind(
    guards: str, told: bool, federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        federation.run(model="tests.federation:normed_net", rounds=1, guards=guards)
    assert ("the guards do not look for noise: in the model's largest tensor" in caplog.text) is told


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


def test_a_runs_free_rider_thresholds_reach_its_test(federation: Federation) -> None:
    nodes = federation.nodes(5)
    quiet = federation.run("quiet", nodes, rounds=5)
    assert not any(flag.test == "robust-z" for line in quiet.clients() for flag in line.flags)
    # Any share below the median one, however little, is an outlier now.
    eager = federation.run("eager", nodes, rounds=5, free_rider_z=-1e-9, free_rider_share=1.0)
    flags = [flag for line in eager.clients() for flag in line.flags if flag.test == "robust-z"]
    assert flags and {flag.threshold for flag in flags} == {-1e-9}


def attacked(federation: Federation, run_id: str, attack: str, memory: Memory, **keys: Value) -> Run:
    """A run on the digits whose last of four nodes attacks, and remembers what it has received."""
    nodes = [federation.node(f"site-{i}", range(i - 1, 1200, 4), data="digits") for i in range(1, 5)]

    def wrap(app: Handler) -> Handler:
        return Attackers(app, ["site-4"], ATTACKS[attack], memory)

    more: dict[str, Value] = {"model": "mlp4", "learning_rate": 0.05, "eval_data": "digits", **keys}
    run = federation.run(run_id, nodes, wrap=wrap, **more)
    assert run.error is None and run.end.status == "completed"
    return run


def test_a_node_that_sends_noise_is_told_of_and_with_guards_that_weigh_gets_nothing(
    federation: Federation,
) -> None:
    told = attacked(federation, "told", "noise", {}, weighting="spectralfed")
    taken = attacked(federation, "taken", "noise", {}, weighting="spectralfed", guards="weight")
    for run in (told, taken):
        for line in run.clients():
            assert [flag.test for flag in line.flags] == (["noise"] if line.client == "site-4" else [])
        (suspect,) = run.end.suspects
        assert suspect.client == "site-4" and "no more in common with any other" in suspect.text
        page = (run.folder / "report.html").read_text()
        assert "no more in common with any other" in page and "noise, flagged in 3 rounds (1–3)" in page
    # The scores are fooled: that is what the guards are for.
    assert all(line.weight == 0 for line in taken.clients("site-4"))
    for number in (1, 2, 3):
        free = {line.client: line.weight for line in told.clients() if line.round == number}
        assert max(free, key=free.get) == "site-4"  # type: ignore[arg-type]
        weights = [line.weight for line in taken.clients() if line.round == number]
        assert sum(weights) == pytest.approx(1)  # type: ignore[arg-type]


def test_what_ignores_weights_does_without_the_flagged_as_well(federation: Federation) -> None:
    """The run of those who are left, bit for bit."""
    keys: dict[str, Value] = {"weighting": "uniform", "aggregation": "median", "guards": "weight"}
    taken = attacked(federation, "taken", "noise", {}, **keys)
    told = attacked(federation, "told", "noise", {}, **{**keys, "guards": "observe"})
    nodes = [federation.node(f"site-{i}", range(i - 1, 1200, 4), data="digits") for i in range(1, 4)]
    alone = federation.run("alone", nodes, model="mlp4", learning_rate=0.05, eval_data="digits", **keys)
    assert taken.model_bytes == alone.model_bytes != told.model_bytes


def test_a_flagged_node_adds_nothing_to_what_an_algorithm_keeps(federation: Federation) -> None:
    """The same bits as if its replies had been quarantined; its own control variate stays as it was, too."""
    keys: dict[str, Value] = {"algorithm": "scaffold", "weighting": "uniform", "guards": "weight"}
    keys |= {"model": "mlp4", "learning_rate": 0.05, "eval_data": "digits"}
    nodes = [federation.node(site, range(i, 1200, 4), data="digits") for i, site in enumerate(SITES)]
    dropped = attacked(federation, "dropped", "noise", {}, **keys)

    def spoil(reply: Message, number: int) -> Message:
        update = unpack(reply.content.array_records[UPDATE])
        reply.content[UPDATE] = pack({name: np.full_like(x, np.nan) for name, x in update.items()})
        return reply

    quarantined = federation.run("quarantined", nodes, wrap=on_train("site-4", spoil), **keys)
    assert [c.status for c in quarantined.clients("site-4")] == ["quarantined"] * 3
    assert dropped.model_bytes == quarantined.model_bytes
    states = [load_state(run.folder)[1] for run in (dropped, quarantined)]
    assert [set(state.accepted) for state in states] == [set(SITES[:3])] * 2
    control, other = (state.recipe.shared["control"] for state in states)
    assert all((x == other[name]).all() for name, x in control.items())


def test_a_flagged_reply_does_not_count_for_the_quorum(federation: Federation) -> None:
    nodes = [federation.node(site, range(i, 1200, 4), data="digits") for i, site in enumerate(SITES)]
    keys: dict[str, Value] = {"model": "mlp4", "learning_rate": 0.05, "eval_data": "digits", "min_replies": 4}

    def wrap(app: Handler) -> Handler:
        return Attackers(app, ["site-4"], ATTACKS["noise"], {})

    run = federation.run(nodes=nodes, wrap=wrap, guards="weight", min_nodes=4, **keys)
    assert "the guards leave out site-4 of 4 replies, min-replies is 4" in str(run.error)
    assert not any(record.moved for record in run.rounds)


def test_guards_that_tell_change_no_bit_of_a_run(federation: Federation) -> None:
    off = attacked(federation, "off", "noise", {}, guards="off")
    told = attacked(federation, "told", "noise", {})
    assert off.model_bytes == told.model_bytes
    assert not any(line.flags for line in off.clients())


def test_a_resumed_run_still_knows_the_models_last_moves(federation: Federation) -> None:
    whole = attacked(federation, "whole", "replay", {}, rounds=4, guards="weight")
    memory: Memory = {}
    attacked(federation, "cut", "replay", memory, rounds=2, guards="weight")
    resumed = attacked(federation, "other", "replay", memory, rounds=4, guards="weight", resume="cut")
    assert [line.flags[-1].test for line in resumed.clients("site-4")] == ["empty", *["replay"] * 3]
    assert resumed.model_bytes == whole.model_bytes


def test_an_entropy_layer_that_is_not_there_ends_the_run_before_it_trains(federation: Federation) -> None:
    run = federation.run(entropy_layer="0.weigth")
    assert isinstance(run.error, ModelError) and 'Did you mean "0.weight"?' in str(run.error)
    assert run.clients() == []
    assert federation.run("again", entropy_layer="0.weight").error is None
