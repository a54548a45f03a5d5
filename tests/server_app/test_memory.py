"""What algorithms remember, when replies and disks get lost: c = mean(c_i), or it is said and mended."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict

from client_app.memory import DiskStore, Moment
from common.checkpoint import load_latest
from common.config import Value
from common.params import Arrays, nested
from tests.federation import Federation, Handler, Run, on_train

Names = tuple[str, ...]
THREE: Names = ("site-1", "site-2", "site-3")


def lose(reply: Message, round_: int) -> Message:
    """The node did its work, but its reply never arrived."""
    return Message(Error(5, "lost on the way"), reply_to=_asked(reply))


def spoil(reply: Message, round_: int) -> Message:
    """The reply arrives, but cannot be used."""
    reply.content.metric_records["metrics"]["num-examples"] = 0
    return reply


def _asked(reply: Message) -> Message:
    asked = Message(RecordDict(), reply.metadata.src_node_id, "train")
    asked.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return asked


def with_disks(federation: Federation, names: Names = THREE) -> list[dict[str, Value]]:
    return [federation.node(name, state=str(federation.tmp_path / "disk" / name)) for name in names]


def before_round(number: int, client: str, act: Callable[[Context], None]) -> Callable[[Handler], Handler]:
    """A wrapper that does something to a node before it gets this round's message."""

    def wrap(app: Handler) -> Handler:
        def handler(message: Message, context: Context) -> Message:
            if message.metadata.message_type == "train":
                turn = (message.content.config_records["config"]["round"], context.node_config["name"])
                if turn == (number, client):
                    act(context)
            return app(message, context)

        return handler

    return wrap


def own(federation: Federation, name: str, accepted: int, era: int = 0, slot: str = "control") -> Arrays:
    """What a node holds on its disk of its last accepted reply."""
    store = DiskStore.of(federation.tmp_path / "disk" / name / "memory", "run", name)
    found = store.load(Moment(era, accepted))
    assert found is not None
    return found[slot]


def shared(run: Run, slot: str, population: int = 3) -> Arrays:
    sums = nested(load_latest(run.folder / "checkpoints").shared)[slot]
    return {name: x / population for name, x in sums.items()}


def assert_mean(run: Run, federation: Federation, accepted: dict[str, int], slot: str, era: int = 0) -> None:
    """The server's mean is the mean over all nodes, those that were absent too."""
    parts = [own(federation, name, number, era, slot) for name, number in accepted.items()]
    for name, mean in shared(run, slot).items():
        expected = sum(part[name].astype(np.float64) for part in parts) / 3
        assert np.abs(expected).max() > 1e-4
        np.testing.assert_allclose(mean, expected, atol=2e-6)


SLOTS = {"scaffold": "control", "feddyn": "dual", "feddc": "drift", "fedgamma": "control", "ssf": "control"}


@pytest.mark.parametrize("algorithm", SLOTS)
@pytest.mark.parametrize("harm", [lose, spoil])
def test_a_reply_that_is_not_used_leaves_no_trace_in_the_nodes_memory(
    federation: Federation, algorithm: str, harm: Callable[[Message, int], Message]
) -> None:
    run = federation.run(
        nodes=with_disks(federation),
        algorithm=algorithm,
        rounds=4,
        wrap=on_train("site-2", harm, rounds=[2, 4]),  # type: ignore[arg-type]
        learning_rate=0.05,
    )
    assert run.error is None and run.end.status == "completed-degraded"
    assert_mean(run, federation, {"site-1": 4, "site-2": 3, "site-3": 4}, SLOTS[algorithm])


def test_the_round_after_a_lost_reply_starts_from_the_memory_before_it(federation: Federation) -> None:
    seen: list[object] = []

    def note(context: Context) -> None:
        seen.append(own(federation, "site-2", 1))

    federation.run(
        nodes=with_disks(federation),
        algorithm="scaffold",
        rounds=3,
        wrap=lambda app: before_round(3, "site-2", note)(on_train("site-2", lose, rounds=[2])(app)),  # type: ignore[operator]
    )
    assert seen  # and the value of round 1 was still there


def test_partial_participation_keeps_the_mean_over_all(federation: Federation) -> None:
    run = federation.run(
        nodes=with_disks(federation), algorithm="scaffold", rounds=5, fraction_train=0.5, learning_rate=0.05
    )
    last = {name: max(r.round for r in run.clients(name)) for name in THREE}
    assert len(set(last.values())) > 1
    assert_mean(run, federation, last, "control")


@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn", "fedlesam"])
def test_a_node_that_is_killed_between_rounds_goes_on_from_its_disk(
    federation: Federation, algorithm: str
) -> None:
    def kill(context: Context) -> None:
        context.state = RecordDict()  # what Flower itself keeps goes with the process

    keys: dict[str, Value] = {"algorithm": algorithm, "rounds": 3, "seed": 5}
    undisturbed = federation.run("whole", nodes=federation.nodes(), **keys)
    killed = federation.run(
        "killed", nodes=with_disks(federation), wrap=before_round(3, "site-2", kill), **keys
    )
    assert killed.model_bytes == undisturbed.model_bytes
    lost = federation.run("lost", nodes=federation.nodes(), wrap=before_round(3, "site-2", kill), **keys)
    assert lost.model_bytes != undisturbed.model_bytes


def erase(context: Context) -> None:
    shutil.rmtree(str(context.node_config["state"]))


def damage(context: Context) -> None:
    for path in Path(str(context.node_config["state"])).rglob("*.safetensors"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)


@pytest.mark.parametrize("harm", [erase, damage])
def test_a_lost_disk_is_reported_and_everybody_starts_anew(
    federation: Federation, harm: Callable[[Context], None]
) -> None:
    run = federation.run(
        nodes=with_disks(federation),
        algorithm="scaffold",
        rounds=5,
        learning_rate=0.05,
        wrap=before_round(3, "site-2", harm),
    )
    assert run.error is None
    reasons = [record.reason for record in run.rounds]
    assert reasons[2] == (
        "site-2 lost what it remembered of earlier rounds: the algorithm's state starts anew on all nodes"
    )
    assert not any(reasons[:2] + reasons[3:])
    assert_mean(run, federation, dict.fromkeys(THREE, 5), "control", era=1)


def test_a_memory_that_may_be_lost_costs_a_note_alone(federation: Federation) -> None:
    run = federation.run(
        nodes=with_disks(federation), algorithm="fedlesam", rounds=3, wrap=before_round(3, "site-2", erase)
    )
    assert run.rounds[2].reason == (
        "site-2 lost what it remembered of earlier rounds; the algorithm does without"
    )


@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn", "fedcm", "fedsmoo", "feddc", "ssf"])
def test_a_resumed_run_ends_with_the_bytes_of_a_whole_one(federation: Federation, algorithm: str) -> None:
    keys: dict[str, Value] = {"algorithm": algorithm, "learning_rate": 0.05}
    whole = federation.run("whole", nodes=with_disks(federation), rounds=4, **keys)
    federation.run("run", nodes=with_disks(federation), rounds=2, **keys)
    resumed = federation.run("other", nodes=with_disks(federation), rounds=4, resume="run", **keys)
    assert resumed.error is None
    assert resumed.model_bytes == whole.model_bytes


def test_a_resumed_run_knows_that_everybody_started_anew(federation: Federation) -> None:
    keys: dict[str, Value] = {"algorithm": "scaffold", "learning_rate": 0.05}
    whole = federation.run(
        "whole", nodes=with_disks(federation), rounds=5, wrap=before_round(2, "site-2", erase), **keys
    )
    federation.run(
        "run", nodes=with_disks(federation), rounds=3, wrap=before_round(2, "site-2", erase), **keys
    )
    resumed = federation.run("other", nodes=with_disks(federation), rounds=5, resume="run", **keys)
    assert resumed.model_bytes == whole.model_bytes
    assert not any(r.reason for r in resumed.rounds if r.round > 2)


def test_a_node_that_joins_late_counts_with_zeros(federation: Federation) -> None:
    grids = []

    def start_with_two(grid):  # type: ignore[no-untyped-def]
        grids.append(grid)
        grid.online -= {4}
        return grid

    run = federation.run(
        nodes=with_disks(federation),
        algorithm="scaffold",
        rounds=4,
        learning_rate=0.05,
        wrap_grid=start_with_two,
        wrap=before_round(2, "site-1", lambda context: grids[0].online.add(4)),
    )
    assert {r.client for r in run.clients() if r.round == 1} == {"site-1", "site-2"}
    last = {name: max(r.round for r in run.clients(name)) for name in THREE}
    assert_mean(run, federation, last, "control")


def test_a_resumed_run_still_counts_nodes_that_are_gone(federation: Federation) -> None:
    keys: dict[str, Value] = {"algorithm": "feddyn", "learning_rate": 0.05, "min_nodes": 2}
    grids = []

    def known(grid):  # type: ignore[no-untyped-def]
        grids.append(grid)
        return grid

    whole = federation.run(
        "whole",
        nodes=with_disks(federation),
        rounds=4,
        wrap_grid=known,
        wrap=before_round(2, "site-3", lambda context: grids[0].online.discard(4)),
        **keys,
    )
    federation.run("run", nodes=with_disks(federation), rounds=2, **keys)
    resumed = federation.run("other", nodes=with_disks(federation, THREE[:2]), rounds=4, resume="run", **keys)
    assert {r.client for r in whole.clients() if r.round > 2} == {"site-1", "site-2"}
    assert resumed.model_bytes == whole.model_bytes


def test_the_disk_holds_the_last_two_values_and_nothing_else(federation: Federation) -> None:
    federation.run(nodes=with_disks(federation), algorithm="scaffold", rounds=4)
    files = sorted(p.name for p in (federation.tmp_path / "disk" / "site-1").rglob("*") if p.is_file())
    assert [name.rpartition("-")[0] for name in files] == ["memory-0-3", "memory-0-4"]


def test_a_disk_that_cannot_be_written_is_an_error_of_that_node(federation: Federation) -> None:
    file = federation.tmp_path / "a-file"
    file.write_text("")
    nodes = [*with_disks(federation, ("site-1", "site-2")), federation.node("site-3", state=str(file / "x"))]
    run = federation.run(nodes=nodes, algorithm="scaffold", rounds=1)
    (record,) = run.clients("site-3")
    assert record.status == "error"
    assert record.reason == 'DataError: node "site-3" cannot keep its memory; its log says why'


def test_algorithms_without_memory_write_nothing(federation: Federation) -> None:
    federation.run(nodes=with_disks(federation), algorithm="fedsam", rounds=1)
    assert not (federation.tmp_path / "disk").exists()
