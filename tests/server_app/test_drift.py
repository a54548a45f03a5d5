"""Drift in whole runs: the ledger's records, by hand from the replies; degenerate rounds; nodes' own numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message, MetricRecord
from torch import nn

from common import models
from common.config import RunConfig
from common.filters import Gd
from common.ledger import DriftRecord, Joined
from common.messages import METRICS, UPDATE, pack, unpack
from common.params import Arrays
from server_app.drift import diagnostics
from strategies.drift.bands import layer_bands, over_layers
from strategies.drift.divergence import divergence
from strategies.flower import RoundResult, Verdict
from strategies.round import Reply
from tests.federation import Federation, Run, blobs, on_train

SHAPES = {"0.weight": (48, 6), "0.bias": (48,), "2.weight": (4, 48), "2.bias": (4,)}
MODEL = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 4))  # of these shapes
CONFIG = RunConfig(diagnostics="updates", filter="none")


def drift_of(run: Run) -> list[DriftRecord]:
    return [record for record in run.records if isinstance(record, DriftRecord)]


def reply(client: str, seed: int | None, steps: int = 2, gradient: int | None = None) -> Reply:
    reports = {} if gradient is None else {"gradient": arrays(gradient)}
    return Reply(client, arrays(seed), {}, 10, steps=steps, reports=reports)


def arrays(seed: int | None) -> Arrays:
    draw = np.random.default_rng(seed or 0)
    size = 0 if seed is None else 1
    return {name: (size * draw.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}


def result(*replies: Reply) -> RoundResult:
    return RoundResult(7, tuple(Verdict(r.client, "accepted", reply=r) for r in replies), 1.0)


# -- one round ---------------------------------------------------------------------------------------


def test_a_record_is_made_of_the_scaled_updates() -> None:
    found = diagnostics(CONFIG, MODEL, None).look(result(reply("a", 1), reply("b", 2, steps=4)), lr=0.5)
    assert found is not None
    assert (found.round, found.source, found.filtered, found.clients) == (7, "updates", False, 2)
    rows = {name: [arrays(1)[name].astype(float), arrays(2)[name] / 2.0] for name in SHAPES}
    bands = over_layers([layer_bands(rows[name]) for name in SHAPES if name != "2.bias"])
    np.testing.assert_allclose(found.dist, bands.dist)
    np.testing.assert_allclose(found.std, bands.std, atol=1e-12)  # of a single pair
    np.testing.assert_allclose(found.energy, bands.energy / bands.energy.sum())
    assert found.left_out == ("2.bias",) and found.cka is None
    for layer in found.layers:
        expected = divergence(rows[layer.name])
        assert (layer.absolute, layer.relative, layer.cosine) == pytest.approx(
            (expected.absolute, expected.relative, expected.cosine)
        )
    tried = [layer.name for layer in found.layers if layer.filtered_relative is not None]
    assert tried == ["0.weight", "0.bias", "2.weight"]


def test_the_runs_own_filter_is_tried_on_its_own_tensors() -> None:
    own = {"filter": "gd", "filter_layers": "0.*", "filter_order": "10", "diagnostics": "gradients"}
    look = diagnostics(CONFIG.model_copy(update=own), MODEL, None).look
    found = look(result(reply("a", 1, gradient=3), reply("b", 2, gradient=4)), lr=1.0)
    assert found is not None
    tried = {layer.name: layer.filtered_relative for layer in found.layers}
    assert tried["2.weight"] is None and tried["0.bias"] is not None
    gd = Gd(0.05)
    turned = [torch.from_numpy(arrays(seed)["0.weight"].T.astype(float).reshape(1, -1)) for seed in (3, 4)]
    assert tried["0.weight"] == pytest.approx(divergence([gd(x)[0].numpy() for x in turned]).relative)


def test_updates_that_have_passed_the_filter_are_marked_and_not_filtered_again() -> None:
    config = CONFIG.model_copy(update={"filter": "fft"})
    found = diagnostics(config, MODEL, None).look(result(reply("a", 1), reply("b", 2)), lr=1.0)
    assert found is not None and found.filtered
    assert all(layer.filtered_relative is None for layer in found.layers)
    ascent = config.model_copy(update={"filter_sites": "ascent,perturbation"})
    found = diagnostics(ascent, MODEL, None).look(result(reply("a", 1), reply("b", 2)), lr=1.0)
    assert found is not None and not found.filtered
    off = config.model_copy(update={"filter_ratio": 0.0})
    found = diagnostics(off, MODEL, None).look(result(reply("a", 1), reply("b", 2)), lr=1.0)
    assert found is not None and not found.filtered


def test_gradients_are_unfiltered_whatever_the_filter() -> None:
    config = CONFIG.model_copy(update={"filter": "fft", "diagnostics": "gradients"})
    look = diagnostics(config, MODEL, None).look
    found = look(result(reply("a", 1, gradient=3), reply("b", 2, gradient=4)), lr=0.1)
    assert found is not None
    assert (found.source, found.filtered) == ("gradients", False)
    expected = divergence([arrays(3)["0.weight"], arrays(4)["0.weight"]])
    assert found.layers[0].absolute == pytest.approx(expected.absolute)
    assert found.layers[0].filtered_cosine is not None
    mixed = look(result(reply("a", 1, gradient=3), reply("b", 2)), lr=0.1)
    assert mixed is not None and (mixed.source, mixed.filtered) == ("updates", True)


def test_one_client_has_energies_only() -> None:
    found = diagnostics(CONFIG, MODEL, None).look(result(reply("a", 1)), lr=1.0)
    assert found is not None
    assert (found.clients, found.dist, found.std) == (1, (), ())
    assert sum(found.energy) == pytest.approx(1)
    assert all(layer.absolute is None and layer.cosine is None for layer in found.layers)


def test_clients_that_sent_zeros() -> None:
    found = diagnostics(CONFIG, MODEL, None).look(result(reply("a", None), reply("b", None)), lr=1.0)
    assert found is not None
    assert (found.dist, found.std, found.energy) == ((0.0,) * 10, (0.0,) * 10, ())
    assert all((layer.absolute, layer.relative, layer.cosine) == (0.0, None, None) for layer in found.layers)


def test_nothing_to_look_at_is_no_record() -> None:
    look = diagnostics(CONFIG, MODEL, None).look
    assert look(result(), lr=1.0) is None
    assert look(result(reply("a", 1, steps=0)), lr=1.0) is None


def test_the_largest_numbers_that_a_node_may_send_give_no_nan() -> None:
    huge = Reply("a", {n: np.full(s, 3e38, np.float32) for n, s in SHAPES.items()}, {}, 1, steps=1)
    found = diagnostics(CONFIG, MODEL, None).look(result(huge, reply("b", 1)), lr=1e-99)
    assert found is not None
    assert "NaN" not in found.model_dump_json() and len(found.dist) == 10


# -- whole runs --------------------------------------------------------------------------------------


def test_diagnostics_are_off_unless_asked_for(federation: Federation) -> None:
    run = federation.run(rounds=1)
    assert run.error is None and drift_of(run) == []
    assert not (run.folder / "report-drift.csv").exists()


def test_a_run_records_drift_each_round_and_trains_as_without(federation: Federation) -> None:
    plain = federation.run("plain", filter="none", rounds=2, lr_decay=0.5)
    sent: dict[tuple[str, int], Arrays] = {}

    def noted(name: str) -> object:
        def note(message: Message, number: int) -> Message:
            sent[name, number] = unpack(message.content.array_records[UPDATE])
            return message

        return on_train(name, note)

    def wrap(app):  # type: ignore[no-untyped-def]
        for name in ("site-1", "site-2", "site-3"):
            app = noted(name)(app)  # type: ignore[operator]
        return app

    run = federation.run(
        "watched",
        wrap=wrap,
        filter="none",
        rounds=2,
        lr_decay=0.5,
        diagnostics="updates",
        diagnostics_probe=50,
    )
    assert run.error is None and run.model_bytes == plain.model_bytes
    found = drift_of(run)
    assert [(r.round, r.source, r.filtered, r.clients) for r in found] == [
        (1, "updates", False, 3), (2, "updates", False, 3),
    ]  # fmt: skip
    for record in found:
        lr = 0.3 * 0.5 ** (record.round - 1)
        steps = {c.client: c.steps for c in run.clients() if c.round == record.round}
        rows = [sent[n, record.round]["0.weight"] / (steps[n] * lr) for n in sorted(steps)]  # type: ignore[operator]
        assert record.layers[0].name == "0.weight"
        assert record.layers[0].absolute == pytest.approx(divergence(rows).absolute)
        assert record.cka is not None and 0 < record.cka <= 1
    table = (run.folder / "report-drift.csv").read_text().splitlines()
    assert len(table) == 1 + 2 * (10 + 4 + 1)
    assert "Drift between clients" in (run.folder / "report.html").read_text()


def test_drift_is_known_where_too_few_replies_move_no_model(federation: Federation) -> None:
    def nonsense(message: Message, number: int) -> Message:
        update = unpack(message.content.array_records[UPDATE])
        update["0.bias"] = update["0.bias"] + np.nan
        message.content[UPDATE] = pack(update)
        return message

    run = federation.run(
        wrap=on_train("site-2", nonsense),  # type: ignore[arg-type]
        min_nodes=3, min_replies=3, rounds=1, diagnostics="updates", diagnostics_probe=20, filter="none",
    )  # fmt: skip
    (record,) = drift_of(run)
    assert record.clients == 2 and record.cka is not None


def test_a_resumed_run_has_one_record_a_round(federation: Federation) -> None:
    keys = {"diagnostics": "updates", "filter": "none", "diagnostics_probe": 20}
    whole = federation.run("whole", rounds=3, **keys)  # type: ignore[arg-type]
    federation.run("part", rounds=2, **keys)  # type: ignore[arg-type]
    resumed = federation.run("again", resume="part", rounds=3, **keys)  # type: ignore[arg-type]
    assert [r.round for r in drift_of(resumed)] == [1, 2, 3]
    assert drift_of(resumed)[-1].model_copy(update={"seconds": 0}) == drift_of(whole)[-1].model_copy(
        update={"seconds": 0}
    )


def with_metrics(message: Message, **lists: list[float]) -> Message:
    said = dict(message.content.metric_records[METRICS])
    message.content[METRICS] = MetricRecord({**said, **{k.replace("_", "-"): v for k, v in lists.items()}})
    return message


def test_what_nodes_report_of_their_first_step_stands_in_the_ledger(federation: Federation) -> None:
    run = federation.run(
        wrap=on_train(
            "site-1", lambda m, _: with_metrics(m, energy_removed=[0.5, 0.25], band_energies=[1.0] * 10)
        ),  # type: ignore[arg-type]
        rounds=1,
    )
    (told,), (silent,) = run.clients("site-1"), run.clients("site-2")
    assert (told.energy_removed, told.band_energies) == ((0.5, 0.25), (1.0,) * 10)
    assert (silent.energy_removed, silent.band_energies) == ((), ())
    assert "37.5\u00a0%" in (run.folder / "report.html").read_text()


@pytest.mark.parametrize("removed", [[1.5], [-0.1], [float("nan")], [float("inf")], [0.5] * 5], ids=str)
def test_nonsense_of_a_first_step_is_left_out(federation: Federation, removed: list[float]) -> None:
    run = federation.run(
        wrap=on_train("site-1", lambda m, _: with_metrics(m, energy_removed=removed, band_energies=[-1.0])),  # type: ignore[arg-type]
        rounds=1,
    )
    (record,) = run.clients("site-1")
    assert (record.status, record.energy_removed, record.band_energies) == ("accepted", (), ())


def test_the_bands_are_tensorboard_events(federation: Federation, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = federation.run(rounds=1, diagnostics="updates", filter="none", tensorboard=True)
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    (record,) = drift_of(run)
    values = [events.Scalars(f"drift-band/{m}")[0].value for m in range(10)]
    np.testing.assert_allclose(values, record.dist, rtol=1e-6)


def test_a_head_that_cannot_be_looked_at_ends_the_run_before_its_first_round(federation: Federation) -> None:
    run = federation.run(
        model="tests.server_app.test_probe:uncalled_net", diagnostics="updates", diagnostics_probe=20
    )
    assert "layer of its own" in str(run.error)
    assert run.end.status == "failed" and run.rounds == []


# -- what nodes send for it ---------------------------------------------------------------------------


def noisy_net(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """With dropout and BatchNorm, which a pass too many would disturb."""
    return nn.Sequential(
        nn.Linear(input_shape[0], 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, classes)
    )


def test_nodes_send_their_gradient_and_train_as_if_they_had_not(federation: Federation) -> None:
    seen: list[Arrays] = []

    def note(message: Message, round_: int) -> Message:
        seen.append(unpack(message.content.array_records["report.gradient"]))
        return message

    keys = {"model": "tests.server_app.test_drift:noisy_net", "rounds": 2, "filter_ratio": 0.2}
    off = federation.run("off", **keys)
    run = federation.run("on", diagnostics="gradients", wrap=on_train("site-1", note), **keys)
    assert run.model_bytes == off.model_bytes
    assert [(r.source, r.filtered) for r in drift_of(run)] == [("gradients", False)] * 2
    assert drift_of(run)[0].dist and drift_of(run)[0].energy[0] > 0.01  # nothing filtered it
    assert set(seen[0]) == {"0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "4.bias"}
    for record in run.clients():
        assert len(record.band_energies) == 10 and sum(record.band_energies) > 0
        assert len(record.energy_removed) >= 2 and all(0 < x < 1 for x in record.energy_removed)


def test_the_gradient_that_a_node_sends_is_that_of_all_its_rows(federation: Federation) -> None:
    seen: list[Arrays] = []

    def note(message: Message, round_: int) -> Message:
        seen.append(unpack(message.content.array_records["report.gradient"]))
        return message

    nodes = [federation.node("site-1", validation=0.0), federation.node("site-2")]
    federation.run(
        nodes=nodes, rounds=1, diagnostics="gradients", batch_size=7, wrap=on_train("site-1", note), seed=3
    )
    model = models.build("tests.federation:small_net", (6,), 4, 3)
    x, y = blobs("train")
    loss = nn.functional.cross_entropy(model(torch.from_numpy(x[::3])), torch.from_numpy(y[::3]))
    for (name, _), g in zip(
        model.named_parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
    ):
        np.testing.assert_allclose(seen[0][name], g.numpy(), atol=1e-6)


def test_a_site_that_clips_sends_no_gradients(federation: Federation) -> None:
    policy = federation.tmp_path / "policy.toml"
    policy.write_text("clip-norm = 1.0")
    nodes = [*federation.nodes(2), federation.node("site-3", policy=str(policy))]
    run = federation.run(nodes=nodes, rounds=1, diagnostics="gradients")
    (refused,) = [r.refused for r in run.records if isinstance(r, Joined)]
    assert refused == (
        "PolicyError: site-3: this site clips what it sends, and diagnostics=gradients sends gradients as they are; "
        "take diagnostics=updates"
    )
