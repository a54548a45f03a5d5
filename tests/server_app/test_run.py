"""Whole runs through the real ServerApp and ClientApp: what they leave, and that they repeat bit for bit."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from safetensors.numpy import load_file

from common import __version__
from common.checkpoint import load_latest
from common.config import RunConfig, Value
from common.datasets import load
from common.filters import low_bins
from common.ledger import End, parse
from common.messages import pack, unpack
from common.models import build
from common.params import Arrays
from tests import disks
from tests.federation import DATA, Federation, Handler, on_train


def test_a_run_leaves_its_books_model_checkpoints_and_report(federation: Federation) -> None:
    run = federation.run(seed=5, tensorboard=True, keep_checkpoints=2)
    assert run.error is None
    kinds = [record.kind for record in run.records]
    assert kinds == ["header", *(["client"] * 3 + ["round"]) * 3, "end"]
    assert run.header.model.head == "2.weight" and run.header.model.head_shape == (4, 48)
    assert (run.header.model.tensors, run.header.model.filtered_tensors) == (4, 3)  # all but the 4 biases
    assert (
        run.header.config
        == RunConfig.read(json.loads((run.folder / "config.json").read_text()), "").as_dict()
    )
    assert run.header.config["seed"] == 5 and {"python", "flwr", "torch"} <= run.header.versions.keys()
    assert run.header.versions["specfed"] == __version__
    assert [node.name for node in run.header.nodes] == ["site-1", "site-2", "site-3"]
    assert len({node.fingerprint for node in run.header.nodes}) == 3
    assert run.end.status == "completed" and run.end.rounds == 3
    assert run.end.accuracy == run.rounds[-1].accuracy > 0.9  # type: ignore[operator]
    assert sorted(p.name for p in (run.folder / "checkpoints").iterdir()) == ["round-0002", "round-0003"]
    assert (run.folder / "checkpoints/round-0003/model.safetensors").read_bytes() == run.model_bytes
    assert "run" in (run.folder / "report.html").read_text()
    assert list((run.folder / "tensorboard").iterdir())


def test_each_client_line_says_what_it_did_and_what_it_got(federation: Federation) -> None:
    run = federation.run(local_epochs=2, batch_size=10)
    for line in run.clients():
        assert line.status == "accepted"
        assert line.examples == 54  # 60 rows less a tenth for validation
        assert line.steps == 2 * math.ceil(54 / 10)
        assert set(line.signals) == {"entropy", "alignment"}
        assert 0 < line.signals["entropy"] < math.log(4)  # type: ignore[operator]
        assert line.score is not None and line.score_std is not None and line.loss_before is not None
    for number in (1, 2, 3):
        weights = [line.weight for line in run.clients() if line.round == number]
        assert sum(weights) == pytest.approx(1)  # type: ignore[arg-type]
    assert run.clients("site-1")[-1].loss_before < run.clients("site-1")[0].loss_before  # type: ignore[operator]


def test_a_run_repeats_bit_for_bit_in_whatever_order_nodes_answer(federation: Federation) -> None:
    first = federation.run("first")
    again = federation.run("again")
    turned = federation.run("turned", nodes=federation.nodes()[::-1])
    other = federation.run("other", seed=1)
    assert first.model_bytes == again.model_bytes == turned.model_bytes != other.model_bytes
    assert [c.score for c in first.clients()] == [c.score for c in turned.clients()]


def test_the_server_optimisers_arrays_are_in_the_checkpoint(federation: Federation) -> None:
    keys: dict[str, Value] = {"server_optimizer": "adam", "server_learning_rate": 0.05}
    saved = load_latest(federation.run(**keys).folder / "checkpoints")
    assert saved.optimizer.keys() == {"steps"} | {
        f"{kind}/{name}" for kind in ("momentum", "variance") for name in saved.model
    }
    assert saved.optimizer["steps"] == 3
    assert all(x.dtype == np.float64 for x in saved.optimizer.values())
    assert load_latest(federation.run("plain").folder / "checkpoints").optimizer == {}


@pytest.mark.parametrize(
    "more", [{"weighting": "shapfed", "personalise": "share"}, {"weighting": "cgsv", "reward_beta": 1.0}]
)
def test_each_node_receives_its_own_model_and_the_servers_is_what_is_saved(
    federation: Federation, more: dict[str, Value]
) -> None:
    received: dict[tuple[int, str], Arrays] = {}
    returned: dict[tuple[int, str], Arrays] = {}

    def listen(app: Handler) -> Handler:
        def handler(message: Message, context: Context) -> Message:
            reply = app(message, context)
            if message.metadata.message_type == "train":
                number = int(message.content.config_records["config"]["round"])  # type: ignore[arg-type]
                key = (number, str(context.node_config["name"]))
                received[key] = unpack(message.content.array_records["arrays"])
                update = unpack(reply.content.array_records["update"])
                returned[key] = {n: received[key][n] + d for n, d in update.items()}  # type: ignore[operator]
            return reply

        return handler

    run = federation.run(rounds=2, wrap=listen, keep_checkpoints=2, **more)
    after_first = load_file(run.folder / "checkpoints/round-0001/model.safetensors")
    weights = {c.client: c.weight for c in run.clients() if c.round == 1}
    for name, a in weights.items():
        assert a is not None
        mine, start = received[2, name], received[1, name]
        whole = [(mine[n] == after_first[n]).mean() for n in mine]
        if more["weighting"] == "shapfed":
            own = returned[1, name]
            assert all(
                mine[n] == pytest.approx((1 - a) * own[n] + a * after_first[n], abs=1e-6) for n in mine
            )
        else:  # an entry is the server's or as it was
            assert all(((mine[n] == after_first[n]) | (mine[n] == start[n])).all() for n in mine)
            assert min(whole) == 1 or a < max(weights.values())  # type: ignore[type-var]
            assert min(whole) < 1 or a > min(weights.values())  # type: ignore[type-var]
    saved = load_latest(run.folder / "checkpoints")
    assert {name.partition("/")[0] for name in saved.personal} == set(weights)
    assert run.end.status == "completed" and run.end.accuracy > 0.9  # type: ignore[operator]


def test_fedlaw_learns_on_the_servers_data_who_sends_noise(federation: Federation) -> None:
    def noise(reply: Message, number: int) -> Message:
        draw = np.random.default_rng(number)
        update = unpack(reply.content.array_records["update"])
        spoilt = {n: draw.normal(size=d.shape).astype(np.float32) for n, d in update.items()}
        reply.content["update"] = pack(spoilt)
        return reply

    keys: dict[str, Value] = {"weighting": "fedlaw", "proxy_data": DATA, "batch_size": 5}
    run = federation.run(wrap=on_train("site-2", noise), **keys)
    for number in (1, 2, 3):
        weights = {c.client: c.weight for c in run.clients() if c.round == number}
        assert weights["site-2"] == min(weights.values()) < 0.1  # type: ignore[type-var]
    assert run.header.proxy_fingerprint not in {"", run.header.eval_fingerprint}
    assert run.end.accuracy > 0.9  # type: ignore[operator]


def test_feddisco_weighs_by_the_labels_that_nodes_have(federation: Federation) -> None:
    nodes = [
        federation.node("site-1", range(0, 80), validation=0.0),  # all four classes
        federation.node("site-2", range(80, 160, 4), validation=0.0),  # the first class only
    ]
    run = federation.run(weighting="feddisco", nodes=nodes)
    # n = 0.8, 0.2; divergences over their sum 0, 1: 0.8 + 0.1 and max(0.2 - 0.5 + 0.1, 0).
    assert [(c.signals["discrepancy"], c.weight) for c in run.clients()][:2] == [(0, 1), (1, 0)]


def test_feddisco_without_label_counts_fails_and_says_why(federation: Federation) -> None:
    def forget(reply: Message, number: int) -> Message:
        metrics = reply.content.metric_records["metrics"]
        del metrics["label-counts"]
        return reply

    nodes = [federation.node("site-1")]
    run = federation.run(
        weighting="feddisco", nodes=nodes, min_nodes=1, rounds=5, wrap=on_train("site-1", forget)
    )
    assert run.end.status == "failed"
    assert "site-1: label-counts is None; it takes 4 whole numbers" in run.end.reason


@pytest.mark.parametrize(
    "more", [{"weighting": "spectralfuse"}, {"weighting": "feddisco", "contribution": "off"}]
)
def test_nodes_keep_their_label_counts_to_themselves_unless_they_weigh(
    federation: Federation, more: dict[str, Value]
) -> None:
    told: list[str] = []

    def listen(reply: Message, number: int) -> Message:
        told.extend(reply.content.metric_records["metrics"])
        return reply

    federation.run(rounds=1, wrap=on_train("site-1", listen), **more)
    assert "num-examples" in told and "label-counts" not in told


def test_observing_scores_leaves_the_model_of_the_base_weighting(federation: Federation) -> None:
    observed = federation.run("observed", contribution="observe")
    off = federation.run("off", contribution="off")
    uniform = federation.run("uniform", weighting="uniform")
    weighed = federation.run("weighed")
    assert observed.model_bytes == off.model_bytes == uniform.model_bytes != weighed.model_bytes
    assert all(c.score is not None for c in observed.clients())
    assert all(c.score is None and not c.signals for c in off.clients())


def test_with_fft_and_no_weight_decay_the_low_bins_never_move(federation: Federation) -> None:
    run = federation.run(momentum=0.9, local_epochs=2, weight_decay=0.0)
    trained = load_file(run.folder / "model.safetensors")
    start = build("tests.federation:small_net", (6,), 4, seed=0).state_dict()
    for name in ("0.weight", "2.weight"):
        before, after = start[name].flatten(), torch.from_numpy(trained[name]).flatten()
        removed = low_bins(0.05, before.numel())
        moved = (torch.fft.rfft(after) - torch.fft.rfft(before)).abs()
        assert removed > 0
        assert moved[:removed].max() < 1e-4 < 0.1 < moved[removed:].max()


def test_without_own_test_data_the_nodes_test_the_model(federation: Federation) -> None:
    run = federation.run(eval_data="")
    assert {r.evaluated_on for r in run.rounds} == {"nodes"}
    assert run.rounds[0].accuracy == pytest.approx(
        np.mean([c.accuracy_before for c in run.clients() if c.round == 1])  # type: ignore[arg-type]
    )
    assert run.end.accuracy is not None and run.end.accuracy > run.rounds[0].accuracy  # type: ignore[operator]


@pytest.mark.parametrize(
    "more", [{}, {"weighting": "shapfed", "personalise": "share"}, {"weighting": "cgsv", "reward_beta": 1.0}]
)
def test_the_last_score_is_of_what_nodes_would_receive_next(
    federation: Federation, more: dict[str, Value]
) -> None:
    # A longer run sends it to them and tells what they found.
    nodes = [federation.node(f"site-{i}", range(60 * i - 60, 60 * i), validation=0.5) for i in (1, 2, 3)]
    ended = federation.run("ended", eval_data="", nodes=nodes, rounds=2, **more)
    longer = federation.run("longer", eval_data="", nodes=nodes, rounds=3, **more)
    assert ended.end.loss == longer.rounds[2].loss
    assert ended.end.accuracy == longer.rounds[2].accuracy


def test_nodes_that_keep_nothing_apart_leave_the_run_without_a_score(federation: Federation) -> None:
    nodes = [node | {"validation": 0.0} for node in federation.nodes()]
    run = federation.run(eval_data="", nodes=nodes)
    assert run.end.status == "completed"
    assert {r.evaluated_on for r in run.rounds} == {"none"} and run.end.accuracy is None
    assert {c.examples for c in run.clients()} == {60}


def test_batchnorm_statistics_travel_apart_and_counters_stay_whole_numbers(federation: Federation) -> None:
    run = federation.run(model="tests.federation:normed_net", batch_size=27)
    arrays = load_file(run.folder / "model.safetensors")
    assert arrays["1.num_batches_tracked"].dtype == np.int64
    assert arrays["1.num_batches_tracked"] == 3 * 2  # 54 rows: two steps a round
    assert np.abs(arrays["1.running_mean"]).max() > 0
    assert run.header.model.tensors == 6  # parameters only


def test_a_part_of_the_nodes_trains_and_the_others_keep_their_scores(federation: Federation) -> None:
    run = federation.run(rounds=4, fraction_train=0.6, nodes=federation.nodes(3))
    assert {r.sampled for r in run.rounds} == {2}
    assert {c.client for c in run.clients()} == {"site-1", "site-2", "site-3"}
    assert run.end.status == "completed"


def test_examples_weigh_by_the_rows_that_nodes_have(federation: Federation) -> None:
    nodes = [federation.node("site-1", range(40)), federation.node("site-2", range(40, 180))]
    run = federation.run(weighting="examples", nodes=nodes)
    assert [c.weight for c in run.clients()][:2] == pytest.approx([36 / 162, 126 / 162])


def test_a_row_that_is_repeated_never_tests_what_it_trained(federation: Federation) -> None:
    rows = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] * 6
    run = federation.run(nodes=[federation.node("site-1"), federation.node("site-2", rows)])
    assert run.clients("site-2")[0].examples == 54  # one of ten rows, with its copies, is kept apart


def test_data_of_the_server_do_not_come_from_the_nodes(federation: Federation) -> None:
    assert federation.run(eval_data=DATA).header.eval_fingerprint not in {
        node.fingerprint for node in federation.run("b").header.nodes
    }


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsam"])
def test_a_run_without_a_filter_takes_a_model_that_no_filter_fits(
    federation: Federation, algorithm: str
) -> None:
    run = federation.run(filter="none", model="tests.federation:vit_net", algorithm=algorithm, rounds=1)
    assert run.error is None and {r.status for r in run.clients()} == {"accepted"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "room"), [(way, {"a quota": 100, "a full disk": 400}[way]) for way in disks.WAYS]
)
def test_a_full_disk_ends_a_run_with_a_sentence_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, room: int
) -> None:
    program = (
        "import os, subprocess, sys; from pathlib import Path; runs = sys.argv[1]\n"
        "words = ['lab', 'run', '--nodes', '2', 'rounds=4', 'model=mlp4', '--runs', runs]\n"
        "code = subprocess.call([sys.executable, '-m', 'specfed.cli', *words])\n"
        "print(code, [p.name for p in Path(runs).rglob('.*') if p.name != '.lock'])\n"
        "print((*Path(runs).glob('*/ledger.jsonl'),)[0].read_text().splitlines()[-1])\n"
    )
    monkeypatch.setenv("SPECFED_CACHE", str(tmp_path / "cache"))
    for split in ("train", "test"):  # so that only what is tried meets the full disk
        load("digits", split)
    done = disks.run(way, room, tmp_path / "disk", program)
    assert re.fullmatch(r"error: the run folder \S+ cannot be written: [\w ]+\n", done.stderr), done.stderr
    *_, left, last = done.stdout.splitlines()
    assert left == "7 []"
    end = parse(last)
    assert isinstance(end, End) and (end.status, end.error) == ("failed", "RunFailed")


def test_a_round_asks_as_many_nodes_as_it_needs_replies(federation: Federation) -> None:
    run = federation.run(rounds=2, fraction_train=0.1, min_replies=2)
    assert run.error is None and [r.sampled for r in run.rounds] == [2, 2]
