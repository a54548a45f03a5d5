"""A run that goes on: with the bits of one that was never stopped, or not at all and with the reason."""

import json
import re
import shutil

import pytest
import torch
from flwr.app import Context, Message
from safetensors.numpy import load_file

from common.config import RunConfig, Value
from common.datasets import load
from common.errors import ConfigError, DataError, SpecfedError
from common.evaluation import evaluate
from common.ledger import End, Joined
from common.messages import refusal, unpack
from common.models import build
from common.params import load_into
from tests.federation import DATA, Federation, Handler, Run, on_train


@pytest.mark.parametrize(
    "more",
    [
        {"weighting": "uniform"},
        {"weighting": "spectralfuse"},
        {"weighting": "cgsv", "server_optimizer": "momentum", "server_momentum": 0.5},
        {"weighting": "fedawa", "server_optimizer": "adam", "server_learning_rate": 0.05},
        {"weighting": "feddisco", "server_optimizer": "yogi", "server_learning_rate": 0.01},
        {"weighting": "shapfed", "server_optimizer": "adagrad", "server_learning_rate": 0.05},
        {"aggregation": "geometric-median", "update_clip": 1.0, "layer_shrinkage": 0.03},
        {"weighting": "shapfed", "personalise": "share"},
        {"weighting": "shapfed", "personalise": "relative", "model": "tests.federation:normed_net"},
        {"weighting": "cgsv", "reward_beta": 1.0},
        {"weighting": "spectralfed", "guards": "weight", "guard_z": 4.0},
        {"weighting": "fedlaw", "proxy_data": DATA, "model": "tests.federation:normed_net"},
    ],
    ids=lambda more: "-".join(str(value) for value in more.values()),
)
def test_a_resumed_run_is_the_uninterrupted_one(federation: Federation, more: dict[str, Value]) -> None:
    keys = {"momentum": 0.9, "fraction_train": 0.5, "lr_decay": 0.9, **more}
    whole = federation.run("whole", rounds=5, **keys)
    federation.run("cut", rounds=2, **keys)
    resumed = federation.run(resume="cut", rounds=5, **keys)
    assert resumed.error is None
    assert resumed.model_bytes == whole.model_bytes
    assert [(c.round, c.client, c.score, c.weight) for c in resumed.clients()] == [
        (c.round, c.client, c.score, c.weight) for c in whole.clients()
    ]
    assert [r.round for r in resumed.rounds] == [1, 2, 3, 4, 5]


def test_a_resumed_run_keeps_the_order_of_tensors(federation: Federation) -> None:
    # A file sorts them; sums over all tensors depend on their order in the last bits.
    orders: list[list[list[str]]] = []

    def listen(app: Handler) -> Handler:
        def handler(message: Message, context: Context) -> Message:
            if message.metadata.message_type == "train":
                orders.append([list(unpack(r)) for r in message.content.array_records.values()])
            return app(message, context)

        return handler

    keys: dict[str, Value] = {
        "model": "tests.federation:normed_net",
        "algorithm": "fedsmoo",
        "weighting": "shapfed",
        "personalise": "share",
    }
    federation.run("run", rounds=2, wrap=listen, **keys)
    live, orders[:] = orders[-1], []
    resumed = federation.run(resume="run", rounds=3, wrap=listen, **keys)
    assert resumed.error is None
    assert live[0][:2] == ["0.weight", "0.bias"] and len(live) == 3
    assert orders == [live] * 3


def test_fedawas_weights_are_the_same_after_a_resumption(federation: Federation) -> None:
    keys: dict[str, Value] = {
        "weighting": "fedawa",
        "fraction_train": 0.5,
        "model": "tests.federation:normed_net",
        "seed": 3,  # one whose sums depend on the order of tensors
    }
    whole = federation.run("whole", rounds=8, **keys)
    federation.run("cut", rounds=2, **keys)
    resumed = federation.run(resume="cut", rounds=8, **keys)
    assert [c.weight for c in resumed.clients()] == [c.weight for c in whole.clients()]


def test_rounds_after_the_checkpoint_are_done_again(federation: Federation) -> None:
    whole = federation.run("whole", rounds=3)
    run = federation.run("cut", rounds=3, keep_checkpoints=5)
    # The server died after it wrote round 3 into the ledger and before its checkpoint was whole.
    (run.folder / "checkpoints/round-0003").rename(run.folder / "checkpoints/.round-0003.1")
    resumed = federation.run(resume="cut", rounds=3)
    assert resumed.model_bytes == whole.model_bytes
    assert [r.round for r in resumed.rounds] == [1, 2, 3]


def test_what_cannot_be_resumed_or_begun_is_told_in_a_sentence(federation: Federation) -> None:
    run = federation.run("first", rounds=1)
    assert str(federation.run(resume="nowhere").error).startswith('no run "nowhere" to resume in ')
    assert str(federation.run("first").error) == f"the run folder {run.folder} exists already"
    state = run.folder / "checkpoints/round-0001/state.json"
    whole = json.loads(state.read_text())
    state.write_text(json.dumps(whole | {"state": {}}))
    assert "does not hold a strategy's state" in str(federation.run(resume="first").error)
    shutil.rmtree(run.folder / "checkpoints")
    without = "run first has no checkpoint to go on from; start it anew"
    assert str(federation.run(resume="first").error) == without


def contents(run: Run) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}


def test_a_run_that_is_going_on_cannot_be_resumed_beside_itself(federation: Federation) -> None:
    """Both would write its ledger and checkpoints, and the first one's lines would be lost."""
    whole = federation.run("whole", rounds=3)
    federation.run("run", rounds=1)
    second: list[Run] = []

    def twice(reply: Message, number: int) -> Message:
        if number == 3:
            second.append(federation.run(resume="run", rounds=4))
        return reply

    first = federation.run(resume="run", rounds=3, wrap=on_train("site-1", twice))
    assert isinstance(second[0].error, ConfigError)
    assert str(second[0].error) == "run run is going on; 'specfed status' lists it"
    assert first.error is None and first.model_bytes == whole.model_bytes
    assert [r.round for r in first.rounds] == [1, 2, 3]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_is_not_there_is_told_before_anything_is_written(federation: Federation) -> None:
    run = federation.run("run", rounds=2)
    before = contents(run)
    assert "cuda" in str(federation.run(resume="run", rounds=3, device="cuda:7").error)
    assert contents(run) == before
    new = federation.run("new", device="cuda:7")
    assert "cuda" in str(new.error) and not new.folder.exists()


def test_rounds_that_are_done_again_are_shown_once_in_tensorboard(federation: Federation) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = federation.run("cut", rounds=3, keep_checkpoints=5, tensorboard=True)
    (run.folder / "checkpoints/round-0003").rename(run.folder / "checkpoints/.round-0003.1")
    federation.run(resume="cut", rounds=4, tensorboard=True)
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4]


def test_a_finished_run_stays_as_it_is_unless_more_rounds_are_asked_for(federation: Federation) -> None:
    run = federation.run("run", rounds=3)
    before = contents(run)
    for rounds in (2, 3):
        again = federation.run(resume="run", rounds=rounds)
        assert isinstance(again.error, ConfigError)
        assert str(again.error) == (
            f"run run has finished after 3 rounds; to go on it takes rounds=4 or more; got {rounds}"
        )
        assert contents(again) == before
    longer = federation.run(resume="run", rounds=4)
    assert longer.end.status == "completed" and longer.end.rounds == 4
    assert longer.header.config["rounds"] == 4


@pytest.mark.parametrize(
    ("eval_data", "nodes"), [(DATA, 3), (DATA, 0), ("", 3)], ids=["server", "server alone", "nodes"]
)
def test_a_run_that_was_killed_after_its_last_checkpoint_is_finished(
    federation: Federation, eval_data: str, nodes: int
) -> None:
    run = federation.run("run", eval_data=eval_data, keep_checkpoints=5)
    whole, model, rounds = run.end, run.model_bytes, run.rounds
    older = (run.folder / "checkpoints/round-0002/model.safetensors").read_bytes()
    (run.folder / "model.safetensors").write_bytes(older)
    (run.folder / "report.html").unlink()
    ledger = run.folder / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    again = federation.run(resume="run", eval_data=eval_data, nodes=federation.nodes(nodes))
    assert again.error is None
    assert again.end.model_copy(update={"seconds": whole.seconds}) == whole
    assert again.end.accuracy is not None and again.end.seconds >= rounds[-1].elapsed
    assert again.model_bytes == model and again.rounds == rounds
    assert (run.folder / "report.html").is_file()


def test_the_end_of_a_killed_run_tells_of_its_model_what_the_ledger_cannot(federation: Federation) -> None:
    """A loss that is not finite is null there."""
    run = federation.run("run", rounds=1)
    ledger = run.folder / "ledger.jsonl"
    *lines, round_, _end = ledger.read_text().splitlines()
    ledger.write_text("\n".join([*lines, re.sub(r'"loss":[^,]+', '"loss":null', round_)]) + "\n")
    again = federation.run(resume="run", rounds=1)
    assert again.rounds[-1].loss is None
    assert again.end.loss == run_loss(run) and again.end.status == "completed"


def run_loss(run: Run) -> float:
    """The last model's loss on all test rows, the slow way."""
    model, test = build("tests.federation:small_net", (6,), 4, 0), load(DATA, "test")
    load_into(dict(model.named_parameters()), dict(load_file(run.folder / "model.safetensors")))
    return evaluate(model, test, torch.device("cpu")).loss


def test_a_run_goes_on_with_sites_of_its_own_classes_only(federation: Federation) -> None:
    sites = {
        i: [federation.node(f"site-{n}", data=f"tests.federation:named_{i}") for n in (1, 2)] for i in (1, 2)
    }
    federation.run("run", rounds=1, nodes=sites[1], eval_data="")
    other = federation.run(resume="run", rounds=2, nodes=sites[2], eval_data="")
    assert isinstance(other.error, DataError)
    said = "the nodes' data do not fit those of the run: site-1 does not name its classes or columns as it did before"
    assert said in other.end.reason


def test_a_run_goes_on_with_its_own_configuration_only(federation: Federation) -> None:
    run = federation.run("run", rounds=2, seed=5, run_name="mine")
    before = contents(run)
    other = federation.run(resume="run", rounds=4, weighting="cgsv", learning_rate=0.1)
    assert isinstance(other.error, ConfigError)
    assert str(other.error) == (
        "run run goes on with its own configuration only; seed: stored 5, got 0; "
        'learning-rate: stored 0.3, got 0.1; weighting: stored "spectralfuse", got "cgsv". '
        f"It is in {run.folder}/config.json: 'specfed run config.json resume=run' takes that file"
    )
    assert contents(other) == before
    freely: dict[str, Value] = {"min_nodes": 1, "round_timeout": 60.0, "keep_checkpoints": 1, "threads": 2}
    resumed = federation.run(resume="run", rounds=3, seed=5, **freely)
    assert resumed.error is None
    stored = RunConfig.saved(run.folder / "config.json")
    assert resumed.header.config == stored.as_dict()
    assert (stored.rounds, stored.min_nodes, stored.run_name, stored.resume) == (3, 1, "mine", "")


def test_a_configuration_that_cannot_be_read_is_named(federation: Federation) -> None:
    run = federation.run("run", rounds=1)
    for text in ("{", "[]", '{"sed": 1}'):
        (run.folder / "config.json").write_text(text)
        error = federation.run(resume="run", rounds=2).error
        assert isinstance(error, ConfigError) and f"{run.folder}/config.json" in str(error)


def test_a_resumption_that_fails_tells_what_the_run_had_done(federation: Federation) -> None:
    run = federation.run("run", rounds=2)
    done, model = run.end, run.model_bytes
    away = federation.run(resume="run", rounds=5, nodes=[])
    assert away.end.status == "failed" and "0 of 2 nodes" in away.end.reason
    assert (away.end.rounds, away.end.accuracy, away.end.loss) == (2, done.accuracy, done.loss)
    assert away.end.seconds >= done.seconds - 0.5 and away.model_bytes == model
    three = [
        federation.node(f"site-{i}", range(i, 130, 2), data="tests.federation:three_classes") for i in (1, 2)
    ]
    other = federation.run(resume="run", rounds=5, nodes=three)
    assert isinstance(other.error, DataError)
    assert "the checkpoint does not fit this run's model" in other.end.reason
    assert other.end.rounds == 2 and other.end.accuracy == done.accuracy
    assert federation.run(resume="run", rounds=3).end.status == "completed"


def test_rounds_that_moved_the_model_count_after_a_resumption(federation: Federation) -> None:
    def refuse(app: Handler) -> Handler:
        def handler(message: Message, context: Context) -> Message:
            if message.metadata.message_type == "train":
                return refusal(message, SpecfedError("no"))
            return app(message, context)

        return handler

    def end_of(run: Run) -> End:
        assert not run.rounds[-1].moved
        return run.end

    federation.run("run", rounds=1)
    resumed = end_of(federation.run(resume="run", rounds=2, wrap=refuse))
    assert (resumed.status, resumed.rounds) == ("completed-degraded", 2)
    never = end_of(federation.run("never", rounds=1, wrap=refuse))
    assert "no round moved the model: it is the one it began with" in never.reason
    still = end_of(federation.run(resume="never", rounds=2, wrap=refuse))
    assert "no round moved the model: it is the one it began with" in still.reason


def test_a_node_that_came_while_the_run_stood_still_is_in_the_ledger(federation: Federation) -> None:
    federation.run("run", rounds=1, nodes=federation.nodes(2))
    resumed = federation.run(resume="run", rounds=2, nodes=federation.nodes(3))
    joined = [r for r in resumed.records if isinstance(r, Joined)]
    assert [(r.round, r.node and r.node.name) for r in joined] == [(2, "site-3")]


@pytest.mark.parametrize("ledger", [b"", b'{"kind":"header"', b"\0" * 64])
def test_a_ledger_that_lost_its_beginning_is_told(federation: Federation, ledger: bytes) -> None:
    run = federation.run("run", rounds=1)
    (run.folder / "ledger.jsonl").write_bytes(ledger)
    again = federation.run(resume="run", rounds=2)
    assert str(again.error) == "the ledger of run run does not tell how it began; start it anew"


@pytest.mark.parametrize(("file", "error"), [("config.json", ConfigError), ("state.json", DataError)])
def test_files_nested_beyond_reason_are_told(federation: Federation, file: str, error: type) -> None:
    run = federation.run("run", rounds=1)
    (damaged,) = run.folder.rglob(file)
    damaged.write_text("[" * 200_000)
    assert type(federation.run(resume="run", rounds=2).error) is error
