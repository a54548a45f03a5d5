"""Each algorithm's own lines by hand, and the end points where one paper is another."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from client_app.algorithms import ALGORITHMS, Tools, build
from client_app.algorithms.fedlc import CalibratedLoss
from client_app.algorithms.fedlesam import BackAlongTheWay
from client_app.algorithms.fedsam import Asam, Sam
from client_app.algorithms.rule import Algorithm, LocalContext, Sites
from client_app.algorithms.ssf import Ssf
from client_app.training import LocalSettings, Trained, train
from common import filters
from common.codec import Codec, Coordinates
from common.config import RunConfig
from common.datasets import Examples
from common.params import Params, add, length, scale, sub, trainable
from common.slots import CONTROL, DIRECTION, LAST_MODEL

CPU = torch.device("cpu")
SHAPES = {"weight": (8, 6), "bias": (5,)}


def some(seed: int, shapes: dict[str, tuple[int, ...]] = SHAPES) -> Params:
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=g, dtype=torch.float64) for name, shape in shapes.items()}


def keep(params: Params) -> Params:
    return params


def halved(params: Params) -> Params:
    """A filter that leaves a mark."""
    return scale(0.5, params)


def made(name: str, phi: Any = keep, fft: Any = keep, project: Any = keep, **config: Any) -> Algorithm:
    return build(RunConfig.model_validate({"algorithm": name, **config}), Tools(phi, fft, project))


def assert_equal(one: Params, other: Params) -> None:
    assert list(one) == list(other)
    for name, x in one.items():
        torch.testing.assert_close(x, other[name], atol=1e-13, rtol=1e-13)


def local(
    algorithm: Algorithm, broadcast: Any = None, memory: Any = None, model: nn.Module | None = None
) -> Trained:
    """A round of 6 steps of a small net in float64."""
    draw = np.random.default_rng(0)
    data = Examples(draw.normal(size=(15, 6)), draw.integers(0, 4, 15), 4)
    settings = LocalSettings(lr=0.1, epochs=2, batch_size=5)
    net = mlp() if model is None else model
    return train(net, data, algorithm, settings, CPU, np.random.default_rng(1), 2, broadcast, memory)


def mlp() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 4)).double()


def slot(seed: int) -> Params:
    return some(seed, {name: tuple(p.shape) for name, p in trainable(mlp()).items()})


# Where one is another

V, C, OWN = {DIRECTION: slot(1)}, {CONTROL: slot(2)}, {CONTROL: slot(3)}

SAME: dict[str, tuple[Algorithm, Algorithm, Any, Any]] = {
    "FedProx without pull": (made("fedprox", prox_mu=0.0), made("fedavg"), None, None),
    "FedSAM of radius 0": (made("fedsam", sam_rho=0.0), made("fedavg"), None, None),
    "FedFFT of radius 0": (made("fedfft", sam_rho=0.0), made("fedavg"), None, None),
    "FedCM with its own gradient alone": (made("fedcm", mix=1.0), made("fedavg"), V, None),
    "MoFedSAM of radius 0": (made("mofedsam", sam_rho=0.0), made("fedcm"), V, None),
    "MoFedSAM with its own gradient alone": (made("mofedsam", mix=1.0), made("fedsam"), V, None),
    "FedGAMMA of radius 0": (made("fedgamma", sam_rho=0.0), made("scaffold"), C, OWN),
    "FedVSSAM with theta 1": (made("fedvssam", mix=1.0), made("fedsam"), V, None),
    "FedVSSAM's first round": (made("fedvssam"), made("fedsam"), None, None),
    "FedVSSAM of radius 0": (
        made("fedvssam", sam_rho=0.0),
        made("fedcm", warm_start=True),
        V,
        None,
    ),
    "FedVSSAM of radius 0, other reading": (
        made("fedvssam", sam_rho=0.0, vssam_direction="control"),
        made("scaffold"),
        C,
        OWN,
    ),
    "FedLESAM's first round": (made("fedlesam"), made("fedavg"), None, None),
    "FedLESAM-S's first round": (made("fedlesam", lesam_rule="scaffold"), made("scaffold"), C, OWN),
    "FedDyn's first round": (made("feddyn", dyn_alpha=0.4), made("fedprox", prox_mu=0.4), None, None),
    "SCAFFOLD with equal controls": (made("scaffold"), made("fedavg"), C, C),
    "SSF in the whole space": (made("ssf"), made("scaffold"), C, OWN),
    "FedLC without calibration": (made("fedlc", lc_tau=0.0), made("fedavg"), None, None),
    "FedSpeed of radius 0": (
        made("fedspeed", sam_rho=0.0, speed_mu=0.3),
        made("feddyn", dyn_alpha=0.3),
        None,
        None,
    ),
    "FedSMOO of radius 0": (made("fedsmoo", sam_rho=0.0), made("feddyn"), None, None),
}


@pytest.mark.parametrize("case", SAME)
def test_end_points(case: str) -> None:
    one, other, broadcast, memory = SAME[case]
    got, expected = (local(algorithm, broadcast, memory) for algorithm in (one, other))
    assert_equal(got.update, expected.update)
    assert got.steps == expected.steps == 6


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"fedavg", "fedlesam", "feddyn", "ssf"}))
def test_each_algorithm_is_not_fedavg_once_it_is_on(name: str) -> None:
    algorithm = made(name, prox_mu=0.5, fft=halved)
    got = local(algorithm, {**V, **C}, OWN).update
    plain = local(made("fedavg")).update
    assert float(length(sub(got, plain))) > 1e-4 * float(length(plain))


# Single lines

ANCHOR, W, G = some(10), some(11), some(12)


def ctx(**slots: Any) -> LocalContext:
    return LocalContext(ANCHOR, 0.1, **slots)


def test_scaffold() -> None:
    c, c_i = some(1), some(2)
    context = ctx(broadcast={CONTROL: c}, memory={CONTROL: c_i})
    rule = made("scaffold").rule
    assert_equal(rule.direction(G, W, context), sub(add(G, c), c_i))
    new = rule.finish(W, 4, context).memory[CONTROL]
    for name in new:
        expected = c_i[name] - c[name] + (ANCHOR[name] - W[name]) / (4 * 0.1)
        torch.testing.assert_close(new[name], expected, atol=1e-13, rtol=0)


def test_scaffolds_control_becomes_the_mean_of_the_filtered_gradients() -> None:
    seen: list[Params] = []

    def noting(params: Params) -> Params:
        filtered = filters.lift(filters.FftHighPass(0.3))(params)
        seen.append({name: x.clone() for name, x in filtered.items()})
        return filtered

    trained = local(made("scaffold", phi=noting), C, OWN)
    mean = {name: sum(g[name] for g in seen) / 6 for name in seen[0]}
    got = trained.finish.memory[CONTROL]
    for name, x in mean.items():
        torch.testing.assert_close(got[name], x, atol=1e-13, rtol=0)


def test_scaffold_option_one_is_filtered_too() -> None:
    trained = local(made("scaffold", phi=halved, scaffold_option="I"), C, OWN)
    plain = local(made("scaffold", scaffold_option="I"), C, OWN)
    assert_equal(trained.finish.memory[CONTROL], scale(0.5, plain.finish.memory[CONTROL]))
    report = trained.finish.report["control-change"]
    assert_equal(report, sub(trained.finish.memory[CONTROL], OWN[CONTROL]))


def test_feddyn_and_feddc_remember_the_way_that_they_went() -> None:
    dual, drift = some(1), some(2)
    new = made("feddyn", dyn_alpha=0.5).rule.finish(W, 3, ctx(memory={"dual": dual})).memory["dual"]
    assert_equal(new, sub(dual, scale(0.5, sub(W, ANCHOR))))
    found = made("feddc", dc_alpha=0.5).rule.finish(W, 3, ctx(memory={"drift": drift})).memory
    assert_equal(found["drift"], add(drift, sub(W, ANCHOR)))
    sent = made("feddc", duals="participants").rule.finish(W, 3, ctx()).report["shift"]
    assert_equal(sent, sub(W, ANCHOR))
    sent = made("fedspeed", duals="participants", speed_mu=0.5).rule.finish(W, 3, ctx()).report["shift"]
    assert_equal(sent, sub(W, ANCHOR))


def test_feddc_by_hand() -> None:
    context = ctx(broadcast={CONTROL: some(1)}, memory={CONTROL: some(2), "drift": some(3)})
    got = made("feddc", dc_alpha=0.5).rule.direction(G, W, context)
    for name in G:
        pull = 0.5 * (W[name] + some(3)[name] - ANCHOR[name])
        torch.testing.assert_close(got[name], G[name] + pull - some(2)[name] + some(1)[name])


@pytest.mark.parametrize("warm", [True, False])
def test_fedcms_first_round(warm: bool) -> None:
    got = made("fedcm", mix=0.2, warm_start=warm).rule.direction(G, W, ctx())
    assert_equal(got, G if warm else scale(0.2, G))


def test_sam_goes_rho_up_the_gradient_of_all_tensors_together() -> None:
    offset = Sam(0.3).offset(G, W, ctx())
    assert offset is not None
    assert float(length(offset)) == pytest.approx(0.3)
    assert_equal(scale(float(length(G)) / 0.3, offset), G)
    still = Sam(0.3).offset(scale(0.0, G), W, ctx())
    assert still is not None and not any(x.any() for x in still.values())


def test_asam_by_hand() -> None:
    g, w = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, -1.0])}
    offset = Asam(0.5).offset(g, w, LocalContext(w, 0.1))
    assert offset is not None  # w g = (3, -2), norm sqrt 13; w^2 g = (9, 2)
    torch.testing.assert_close(offset["w"], 0.5 * torch.tensor([9.0, 2.0]) / 13**0.5)


FEDFFT_G = torch.tensor([3.0, 1, -2, 4, 0, -1, 2, 5], dtype=torch.float64)
FEDFFT_E = [0.019365, -0.006455, -0.045185, 0.032275, -0.019365, -0.032275, 0.006455, 0.045185]


@pytest.mark.parametrize("renorm", [False, True])
def test_fedfft_takes_the_mean_out_of_the_perturbation(renorm: bool) -> None:
    phi = filters.lift(filters.FftHighPass(0.2))  # one bin of five
    algorithm = made("fedfft", fft=phi, sam_rho=0.1, fft_renorm=renorm)
    g = {"w": FEDFFT_G}
    context = LocalContext(g, 0.1)
    offset = algorithm.ascent.offset(algorithm.sites.ascent(g), g, context)
    assert offset is not None
    e = algorithm.sites.perturbation(offset)["w"]
    factor = 1.195229 if renorm else 1.0
    torch.testing.assert_close(e, factor * torch.tensor(FEDFFT_E, dtype=torch.float64), atol=1e-6, rtol=0)
    assert float(e.norm()) == pytest.approx(0.1 if renorm else 0.083666, abs=1e-6)
    assert algorithm.sites.gradient is not phi


def test_fedlesam_looks_back_along_the_way() -> None:
    last = some(3)
    offset = BackAlongTheWay(0.2).offset({}, W, ctx(memory={LAST_MODEL: last}))
    assert offset is not None
    assert float(length(offset)) == pytest.approx(0.2)
    assert_equal(scale(float(length(sub(last, ANCHOR))) / 0.2, offset), sub(last, ANCHOR))
    assert BackAlongTheWay(0.2).finish(ctx()).memory[LAST_MODEL] is ANCHOR


def test_fedvssam_can_look_along_the_step_before() -> None:
    algorithm = made("fedvssam", vssam_reuse=True, mix=0.5)
    assert algorithm.ascent.blind
    assert algorithm.ascent.offset({}, W, ctx()) is None
    first = algorithm.ascent.offset({}, W, ctx(broadcast={DIRECTION: G}))
    assert first is not None and float(length(first)) == pytest.approx(0.05)
    memory = algorithm.ascent.after_step(None, some(4), ctx())
    after = algorithm.ascent.offset({}, W, ctx(broadcast={DIRECTION: G}, memory=memory))
    assert after is not None
    assert_equal(scale(float(length(some(4))) / 0.05, after), some(4))


def test_fedspeed_blends() -> None:
    ascent = made("fedspeed", speed_share=0.25, speed_normalise=False, sam_rho=0.3).ascent
    offset = ascent.offset(G, W, ctx())
    assert offset is not None
    assert_equal(offset, scale(0.3, G))
    assert_equal(ascent.blend(G, W), add(scale(0.75, G), scale(0.25, W)))


def test_fedsmoo_by_hand() -> None:
    ascent = made("fedsmoo", sam_rho=0.2).ascent
    context = ctx(broadcast={"perturbation": some(1)}, memory={"ascent-dual": some(2)})
    offset = ascent.offset(G, W, context)
    u = sub(sub(G, some(2)), some(1))
    assert offset is not None
    assert_equal(scale(float(length(u)) / 0.2, offset), u)
    after = ascent.after_step(offset, G, context)["ascent-dual"]
    assert_equal(after, sub(add(some(2), offset), some(1)))


# FedLC

LOGITS, COUNTS = torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.float64), torch.tensor([16, 1, 81])


def lc(loss: CalibratedLoss, counts: Tensor = COUNTS, y: int = 0) -> float:
    context = dataclasses.replace(ctx(), counts=counts)
    return float(loss(LOGITS, torch.tensor([y]), context))


def test_fedlc_of_one_example() -> None:
    assert CalibratedLoss(1.0).offsets(COUNTS).tolist() == pytest.approx([0.5, 1, 1 / 3])
    assert lc(CalibratedLoss(1.0)) == pytest.approx(0.324262, abs=1e-6)
    assert lc(CalibratedLoss(1.0, paper_denominator=True)) == pytest.approx(-0.959694, abs=1e-6)
    assert lc(CalibratedLoss(0.0)) == pytest.approx(0.407606, abs=1e-6)


def test_fedlc_gives_an_absent_class_no_gradient() -> None:
    logits = LOGITS.clone().requires_grad_()
    context = dataclasses.replace(ctx(), counts=torch.tensor([4, 0, 2]))
    CalibratedLoss(1.0)(logits, torch.tensor([0]), context).backward()
    assert logits.grad is not None
    assert logits.grad[0, 1] == 0 and logits.grad[0, 0] < 0 < logits.grad[0, 2]


def test_fedlc_of_a_node_with_one_class_has_nothing_to_learn() -> None:
    assert lc(CalibratedLoss(1.0), torch.tensor([9, 0, 0])) == 0.0


# SSF: four coordinates, two of them active in each round

ACTIVE = [(0, 1), (2, 3), (1, 2), (0, 1)]
TAKING_PART = [(1, 2), (1, 2), (1,), (1, 2)]
CURVATURE = {1: [1.0, 2, 1, 2], 2: [2.0, 1, 1, 1]}
OPTIMUM = {1: [1.0, 0, -1, 2], 2: [-1.0, 1, 0, 1]}
EXPECTED_W = [
    [-0.085, 0.095, 0, 0],
    [-0.085, 0.095, -0.095, 0.455],
    [-0.085, 0.1463, -0.1767, 0.455],
    [-0.1535, 0.19814625, -0.1767, 0.455],
]
EXPECTED_C = [
    [0.425, -0.475, 0, 0],
    [0.425, -0.475, 0.475, -2.275],
    [0.425, -0.36575, 0.44175, -2.275],
    [0.3425, -0.25923125, 0.44175, -2.275],
]


def test_four_rounds_of_ssf_by_hand() -> None:
    w, c = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    own = {i: torch.zeros(4, dtype=torch.float64) for i in (1, 2)}
    for active, clients, expected_w, expected_c in zip(
        ACTIVE, TAKING_PART, EXPECTED_W, EXPECTED_C, strict=True
    ):
        codec = Codec({"w": Coordinates(torch.tensor(active), (4,))})
        rule = Ssf(codec.project)
        sent = codec.project({"w": c})
        updates, changes = [], []
        for i in clients:
            context = LocalContext({"w": w}, 0.1, {CONTROL: sent}, {CONTROL: {"w": own[i]}})
            y = w.clone()
            for _ in range(2):
                g = torch.tensor(CURVATURE[i]) * (y - torch.tensor(OPTIMUM[i], dtype=torch.float64))
                y = y - 0.1 * rule.direction({"w": g}, {"w": y}, context)["w"]
            new = rule.finish({"w": y}, 2, context).memory[CONTROL]["w"]
            changes.append(new - own[i])
            own[i] = new
            updates.append(codec.decode(codec.encode({"w": y - w}))["w"])
            torch.testing.assert_close(updates[-1], y - w, atol=1e-15, rtol=0)
        w = w + torch.stack(updates).mean(0)
        c = c + torch.stack(changes).sum(0) / 2
        assert w.tolist() == pytest.approx(expected_w, abs=1e-12)
        assert c.tolist() == pytest.approx(expected_c, abs=1e-12)
        torch.testing.assert_close(c, (own[1] + own[2]) / 2, atol=1e-15, rtol=0)
        if len(clients) == 1:
            assert own[1].tolist() == pytest.approx([-0.95, 0.2185, 0.8835, -3.6], abs=1e-12)


def test_ssf_projects_the_weight_decay_with_the_gradient() -> None:
    codec = Codec(
        {"weight": Coordinates(torch.tensor([3, 7]), (8, 6)), "bias": Coordinates(torch.tensor([0]), (5,))}
    )
    d = Ssf(codec.project, weight_decay=0.5).direction(G, W, ctx())
    assert_equal(d, codec.project(add(G, scale(0.5, W))))
    assert Ssf.decays


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_ssf_never_leaves_its_subspace(decay: float) -> None:
    codec = Codec({n: Coordinates(torch.tensor([0]), tuple(p.shape)) for n, p in trainable(mlp()).items()})
    algorithm = made("ssf", project=codec.project, weight_decay=decay)
    draw = np.random.default_rng(0)
    data = Examples(draw.normal(size=(15, 6)), draw.integers(0, 4, 15), 4)
    settings = LocalSettings(lr=0.1, batch_size=5, weight_decay=decay)
    control = {CONTROL: codec.project(slot(2))}
    update = train(mlp(), data, algorithm, settings, CPU, draw, 0, control, {CONTROL: slot(3)}).update
    assert_equal(codec.project(update), update)
    assert all(x.any() for x in update.values())


# Sites


def test_the_runs_filter_goes_where_the_run_says() -> None:
    for sites in ("gradient", "ascent", "perturbation", "sent", "gradient,sent"):
        found = made("fedsam", phi=halved, filter_sites=sites).sites
        on = {f.name for f in dataclasses.fields(Sites) if getattr(found, f.name) is halved}
        assert on == set(sites.split(","))
    both = made("fedfft", phi=halved, fft=keep, filter_sites="gradient").sites
    assert both.gradient is halved and both.perturbation is keep


def test_what_is_sent_is_filtered_once_and_the_model_is_not() -> None:
    plain, sent = local(made("fedavg")), local(made("fedavg", phi=halved, filter_sites="sent"))
    assert_equal(sent.update, scale(0.5, plain.update))


@given(seed=st.integers(0, 1000))
def test_no_rule_changes_what_it_is_given(seed: int) -> None:
    slots = {name: some(seed + i) for i, name in enumerate(("control", "direction", "dual", "drift"))}
    context = LocalContext(some(seed + 7), 0.1, slots, slots)
    g, w = some(seed + 8), some(seed + 9)
    kept = [{name: x.clone() for name, x in part.items()} for part in (g, w, context.anchor, *slots.values())]
    for name in ALGORITHMS:
        algorithm = made(name)
        algorithm.rule.direction(g, w, context)
        algorithm.ascent.offset({} if algorithm.ascent.blind else g, w, context)
        algorithm.rule.finish(w, 3, context)
    for part, before in zip((g, w, context.anchor, *slots.values()), kept, strict=True):
        assert_equal(part, before)


# SAM in the loop


class Noisy(nn.Module):
    """BatchNorm and dropout; counts its passes and keeps what dropout did."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.drop = mlp(), nn.BatchNorm1d(4).double(), nn.Dropout(0.5)
        self.masks: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        logits = self.norm(self.body(x))
        self.masks.append(self.drop(torch.ones_like(logits)) > 0)
        out: Tensor = logits * self.masks[-1]
        return out


def test_both_passes_of_sam_see_the_same_dropout_and_the_first_alone_is_learnt_from() -> None:
    model = Noisy()
    local(made("fedsam", sam_rho=0.5), model=model)
    assert len(model.masks) == 12
    pairs = list(zip(model.masks[::2], model.masks[1::2], strict=True))
    assert all(torch.equal(first, second) for first, second in pairs)
    assert not torch.equal(pairs[0][0], pairs[1][0])
    assert int(model.norm.num_batches_tracked) == 6
    plain = Noisy()
    local(made("fedsam", sam_rho=0.0), model=plain)
    assert not torch.equal(plain.norm.running_mean, model.norm.running_mean)  # the weights went elsewhere
    one = Noisy()
    local(made("fedavg"), model=one)
    torch.testing.assert_close(plain.norm.running_mean, one.norm.running_mean)


def test_the_ascent_leaves_the_parameters_exactly_where_they_were() -> None:
    # With a step of 0 nothing moves, whatever the radius.
    model = mlp()
    before = {name: p.detach().clone() for name, p in trainable(model).items()}
    draw = np.random.default_rng(0)
    data = Examples(draw.normal(size=(15, 6)), draw.integers(0, 4, 15), 4)
    train(model, data, made("fedsam", sam_rho=3.3), LocalSettings(lr=0.0), CPU, draw, 0)
    assert all(torch.equal(p, before[name]) for name, p in trainable(model).items())


@pytest.mark.parametrize("pieces", [2, 5])
def test_sam_of_a_batch_in_pieces_is_sam_of_the_batch(pieces: int) -> None:
    draw = np.random.default_rng(0)
    data = Examples(draw.normal(size=(15, 6)), draw.integers(0, 4, 15), 4)
    updates = []
    for micro in (1, pieces):
        settings = LocalSettings(lr=0.1, batch_size=5, micro_batches=micro)
        rng = np.random.default_rng(1)
        updates.append(train(mlp(), data, made("fedsam", sam_rho=0.3), settings, CPU, rng, 0).update)
    for name, x in updates[0].items():
        torch.testing.assert_close(updates[1][name], x, atol=1e-12, rtol=1e-12)


def test_sam_step_against_two_plain_gradients() -> None:
    draw = np.random.default_rng(0)
    data = Examples(draw.normal(size=(5, 6)), draw.integers(0, 4, 5), 4)
    model, twin = mlp(), mlp()
    update = train(
        model, data, made("fedsam", sam_rho=0.3), LocalSettings(lr=0.1, batch_size=5), CPU, draw, 0
    ).update

    def gradient() -> Params:
        twin.zero_grad()
        loss = nn.functional.cross_entropy(twin(torch.from_numpy(data.x)), torch.from_numpy(data.y))
        grads = torch.autograd.grad(loss, list(trainable(twin).values()))
        return dict(zip(trainable(twin), grads, strict=True))

    g = gradient()
    size = sum(float((x * x).sum()) for x in g.values()) ** 0.5
    with torch.no_grad():
        for name, p in trainable(twin).items():
            p += 0.3 * g[name] / size
    ahead = gradient()
    for name, x in update.items():
        torch.testing.assert_close(x, -0.1 * ahead[name], atol=1e-12, rtol=1e-12)
