"""A site's policy: what it does not allow is refused by the node, and the coordinator reads why."""

import time
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from client_app import site
from client_app.algorithms import ALGORITHMS, Tools, build
from client_app.app import app as client_app
from common import models
from common.config import RunConfig, Value
from common.errors import ConfigError, PolicyError
from common.filters import keep
from common.ledger import Joined
from common.messages import ConfigRecord, Message, RecordDict, pack
from common.params import norm, to_arrays, trainable
from common.policy import Policy, read_policy
from specfed.local_grid import LocalGrid, own_identity
from tests import federation as tests_federation
from tests.federation import Federation, Run, on_train


def with_policy(federation: Federation, text: str, **more: Value) -> list[dict[str, Value]]:
    """Three nodes, the second of which has this policy."""
    file = federation.tmp_path / "policy.toml"
    file.write_text(text)
    return [
        federation.node(name, **(more | {"policy": str(file)} if name == "site-2" else {}))
        for name in ("site-1", "site-2", "site-3")
    ]


def refusals(run: Run) -> list[str]:
    return [r.refused for r in run.records if isinstance(r, Joined)]


@pytest.mark.parametrize(
    ("policy", "config", "sentence"),
    [
        (
            'models = ["cnn5", "mlp4"]',
            {},
            'PolicyError: site-2: this site trains cnn5, mlp4; got model "tests.federation:small_net"',
        ),
        (
            'metrics = ["train-loss"]',
            {"weighting": "feddisco"},
            "PolicyError: site-2: weighting feddisco needs to know how many rows of each class there are, and "
            '"label-counts" is not among the metrics of this site',
        ),
        ("max-rounds = 2", {}, "PolicyError: site-2: this site takes part in at most 2 rounds; got 3"),
        (
            "min-examples = 1000",
            {},
            "PolicyError: site-2: this site trains on at least 1000 rows; it has fewer",
        ),
        (
            "clip-norm = 1.0",
            {"algorithm": "scaffold"},
            "PolicyError: site-2: this site clips what it sends, and algorithm scaffold needs exact updates; "
            "take one without memory, such as fedavg",
        ),
    ],
)
def test_a_run_that_breaks_a_policy_is_refused_with_the_reason(
    federation: Federation, policy: str, config: dict[str, Value], sentence: str
) -> None:
    run = federation.run(nodes=with_policy(federation, policy), min_nodes=2, **config)
    assert refusals(run) == [sentence]
    assert run.error is None and {r.client for r in run.clients()} == {"site-1", "site-3"}


@pytest.mark.parametrize("disk", [True, False])
def test_a_node_counts_its_rounds_itself(federation: Federation, disk: bool) -> None:
    # The configuration tells of 2 rounds, and the server goes on nevertheless.
    state = {"state": str(federation.tmp_path / "state")} if disk else {}
    nodes = with_policy(federation, "max-rounds = 2", **state)
    first = federation.run("run", nodes=nodes, rounds=2)
    assert [r.status for r in first.clients("site-2")] == ["accepted", "accepted"]
    # A server that resumes the run under its name, with as many rounds told.
    again = federation.run("run2", nodes=nodes, rounds=2)
    assert [r.status for r in again.clients("site-2")] == ["accepted", "accepted"]
    if disk:
        with pytest.raises(PolicyError, match="at most 2 rounds of a run"):
            site.count_round(Policy(max_rounds=2), None, str(federation.tmp_path / "state"), "run")  # type: ignore[arg-type]


def test_minutes_are_counted_from_the_first_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(site.time, "time", lambda: now[0])
    policy = Policy(max_minutes=2.0)
    for seconds in (0.0, 100.0, 20.0):
        now[0] += seconds
        site.count_round(policy, None, str(tmp_path), "run")  # type: ignore[arg-type]
    now[0] += 1.0
    with pytest.raises(PolicyError, match="for at most 2 minutes"):
        site.count_round(policy, None, str(tmp_path), "run")  # type: ignore[arg-type]
    site.count_round(policy, None, str(tmp_path), "another run")  # type: ignore[arg-type]


def test_what_leaves_is_clipped(federation: Federation) -> None:
    free = federation.run("free", nodes=federation.nodes(), rounds=1)
    lengths = {r.client: r.update_norm or 0.0 for r in free.clients()}
    run = federation.run("clipped", nodes=with_policy(federation, "clip-norm = 0.05"), rounds=1)
    assert lengths["site-2"] > 0.06
    got = {r.client: r.update_norm for r in run.clients()}
    assert got["site-2"] == pytest.approx(0.05, rel=1e-6)
    assert got["site-1"] == lengths["site-1"] and got["site-3"] == lengths["site-3"]


def test_a_short_update_leaves_as_it_is() -> None:
    update = {"a": np.array([3.0, 4.0])}
    assert np.array_equal(site.clipped(Policy(clip_norm=5.0), update)["a"], update["a"])
    assert site.clipped(Policy(), update) is update
    assert norm(site.clipped(Policy(clip_norm=1.0), update)) == pytest.approx(1.0)


def test_noise_has_its_size_and_is_never_the_same() -> None:
    update = {"a": np.zeros(100_000, np.float32)}
    policy = Policy(clip_norm=0.5, noise=3.0)
    first, second = (site.clipped(policy, update)["a"] for _ in range(2))
    assert first.std() == pytest.approx(1.5, rel=0.02) and abs(first.mean()) < 0.02
    assert first.dtype == np.float32 and not np.array_equal(first, second)
    seeded = [site.clipped(policy, update, np.random.default_rng(1))["a"] for _ in range(2)]
    assert np.array_equal(*seeded)


def test_noise_and_batch_norm_do_not_go_together(federation: Federation) -> None:
    nodes = with_policy(federation, "clip-norm = 1.0\nnoise = 0.1")
    run = federation.run(nodes=nodes, rounds=1, model="tests.federation:normed_net")
    (record,) = run.clients("site-2")
    assert record.status == "error"
    assert record.reason.startswith(
        'PolicyError: this site adds noise to what it sends, but "1.running_mean"'
    )


def test_noise_and_a_buffer_that_never_travels_go_together(federation: Federation) -> None:
    nodes = with_policy(federation, "clip-norm = 1.0\nnoise = 0.001")
    run = federation.run(nodes=nodes, rounds=1, model="tests.federation:net_with_a_constant")
    assert {r.client: r.status for r in run.clients()}["site-2"] == "accepted"


def test_only_allowed_metrics_leave(federation: Federation) -> None:
    seen: list[set[str]] = []

    def listen(reply, number):  # type: ignore[no-untyped-def]
        seen.append(set(reply.content.metric_records["metrics"]))
        return reply

    nodes = with_policy(federation, 'metrics = ["train-loss"]')
    federation.run(nodes=nodes, rounds=1, wrap=on_train("site-2", listen))
    assert seen == [{"num-examples", "steps", "train-loss"}]


def test_beside_noise_only_named_metrics_leave() -> None:
    metrics = {"num-examples": 3, "steps": 1, "train-loss": 0.5, "band-energies": [0.1]}
    noisy = Policy(clip_norm=1.0, noise=1.0)
    assert site.allowed(noisy, metrics) == {"num-examples", "steps"}
    named = noisy.model_copy(update={"metrics": ["train-loss"]})
    assert site.allowed(named, metrics) == {"num-examples", "steps", "train-loss"}
    assert site.allowed(Policy(clip_norm=1.0), metrics) == set(metrics)


def asked(federation: Federation, policy: str, times: int, **more: Value) -> list[Message]:
    """What a node with this policy answers when it is asked to test a model, again and again."""
    (node,) = with_policy(federation, policy, **more)[1:2]
    config = RunConfig.model_validate({"model": "tests.federation:small_net", "rounds": 2}).as_dict()
    grid = LocalGrid(client_app, [node], config)
    order = ConfigRecord({"run": "a", "round": 1, "input-shape": [6], "classes": 4})
    model = models.build("tests.federation:small_net", (6,), 4, 0)
    arrays = pack(to_arrays(trainable(model)))
    content = RecordDict({"arrays": arrays, "buffers": pack({}), "config": order})
    replies: list[Message] = []
    with own_identity():
        for _ in range(times):
            replies += grid.send_and_receive([Message(content, i, "evaluate") for i in grid.get_node_ids()])
    return replies


@pytest.mark.parametrize("disk", [True, False])
def test_testing_a_model_is_under_the_policy_too(federation: Federation, disk: bool) -> None:
    state = {"state": str(federation.tmp_path / "state")} if disk else {}
    replies = asked(federation, 'max-rounds = 2\nmetrics = ["loss"]', 3, **state)
    assert [set(r.content.metric_records["metrics"]) for r in replies[:2]] == [{"num-examples", "loss"}] * 2
    assert replies[2].error.reason == "PolicyError: this site takes part in at most 2 tests of a run"


def test_a_model_is_tested_by_as_many_rows_as_train_at_once(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    builder = tests_federation.small_net

    def noting(input_shape: tuple[int, ...], classes: int) -> nn.Module:
        model = builder(input_shape, classes)
        model.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
        return model

    monkeypatch.setattr(tests_federation, "small_net", noting)
    nodes = [federation.node(f"site-{i}", range(180), validation=0.5) for i in (1, 2)]
    federation.run(nodes=nodes, rounds=1, eval_data="", batch_size=20, micro_batches=2)
    assert max(sizes) == 10


def test_a_site_with_too_few_rows_tests_no_model(federation: Federation) -> None:
    (reply,) = asked(federation, "min-examples = 1000", 1)
    assert reply.error.reason == "PolicyError: this site trains on at least 1000 rows; it has fewer"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("max-round = 3", 'unknown key "max-round" in .*policy.toml. Did you mean "max-rounds"?'),
        ("max-rounds = -1", '"max-rounds" in .*policy.toml: .*greater than or equal to 0; got -1'),
        ('apps = ["x"]', '"apps" in .*policy.toml'),
        ("noise = 1.0", r"noise \(1\) is in units of clip-norm, which is 0, in .*policy.toml"),
        ("max-rounds", "policy file .*policy.toml cannot be read"),
        (None, "policy file .*policy.toml cannot be read"),
    ],
)
def test_a_policy_that_is_none(tmp_path: Path, text: str | None, sentence: str) -> None:
    file = tmp_path / "policy.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_policy(str(file))


@pytest.mark.parametrize(
    ("text", "state"),
    [('max-rounds = "Anna"', ""), ("max-rounds", ""), ("max-rounds = 9", "a-file/anna-meier")],
)
def test_what_stands_in_a_policy_or_a_path_is_for_the_sites_log_alone(
    federation: Federation, text: str, state: str
) -> None:
    (federation.tmp_path / "a-file").write_text("")
    more = {"state": str(federation.tmp_path / state)} if state else {}
    run = federation.run(nodes=with_policy(federation, text, **more), min_nodes=2, rounds=1)
    told = refusals(run) or [r.reason for r in run.clients("site-2")]
    assert len(told) == 1 and told[0].endswith("; its log says why")
    ledger = (run.folder / "ledger.jsonl").read_text()
    assert "Anna" not in ledger and "anna" not in ledger and "policy.toml" not in ledger


def test_a_round_ends_where_nobody_waits_for_it_and_where_the_policy_says(federation: Federation) -> None:
    nodes = with_policy(federation, "max-minutes = 0.005")  # 0.3 seconds
    began = time.monotonic()
    run = federation.run(nodes=nodes, rounds=1, local_epochs=10**6, round_timeout=1.0, max_failed_rounds=1)
    assert time.monotonic() - began < 30
    late = "OutOfTime: the round took longer than the server waits for it, or the site's policy allows"
    assert {r.reason for r in run.clients()} == {late}
    assert run.end.status == "failed"


def test_without_a_file_everything_is_allowed() -> None:
    assert read_policy("") == Policy()


OPTIONS: list[dict[str, Value]] = [
    *({"algorithm": name} for name in ALGORITHMS),
    {"algorithm": "fedvssam", "vssam_direction": "control"},
    {"algorithm": "fedlesam", "lesam_rule": "scaffold"},
    {"algorithm": "fedlesam", "lesam_rule": "feddyn"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_exact_is_what_the_algorithms_rule_says(options: dict[str, Value]) -> None:
    run = RunConfig.model_validate(options)
    assert run.traits.exact == build(run, Tools(keep, keep, keep)).rule.remembers
