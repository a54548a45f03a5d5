"""The local loop against a slow one in plain tensors, and what must hold for any algorithm in it."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from client_app.algorithms.fedprox import FedProx
from client_app.algorithms.rule import Algorithm, LocalRule, Sites
from client_app.training import Diverged, LocalSettings, Trained, batches, train
from common.datasets import Examples
from common.filters import FftHighPass, FilterSettings, build, lift, low_bins
from common.params import Params, ParamsFilter, carried, copy_of, trainable

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors are tiny here: a second thread would only wait, and burn a shared machine's time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def examples(rows: int = 22, features: int = 6, classes: int = 4, seed: int = 0) -> Examples:
    draw = np.random.default_rng(seed)
    return Examples(draw.normal(size=(rows, features)), draw.integers(0, classes, rows), classes)


def mlp(seed: int = 0) -> nn.Module:
    """6 -> 7 -> 4 in float64; the hidden weight has 42 elements, the other tensors fewer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 4)).double()


def run(
    model: nn.Module,
    settings: LocalSettings,
    algorithm: Algorithm | None = None,
    data: Examples | None = None,
    order: int = 5,
    noise: int = 9,
) -> Trained:
    data = examples() if data is None else data
    return train(model, data, algorithm or Algorithm(), settings, CPU, np.random.default_rng(order), noise)


def fft(ratio: float, rule: LocalRule | None = None) -> Algorithm:
    return filtered(rule or LocalRule(), lift(FftHighPass(ratio)))


def filtered(rule: LocalRule, phi: ParamsFilter) -> Algorithm:
    return Algorithm(rule, sites=Sites(gradient=phi))


def assert_equal(one: Params, other: Params) -> None:
    assert list(one) == list(other)
    for name, x in one.items():
        assert torch.equal(x, other[name]), name


def assert_close(one: Params, other: Params, tolerance: float = 1e-12) -> None:
    assert list(one) == list(other)
    for name, x in one.items():
        torch.testing.assert_close(x, other[name], atol=tolerance, rtol=tolerance)


# The slow loop


def without_low_bins(g: Tensor, ratio: float) -> Tensor:
    spectrum = np.fft.fft(g.numpy().ravel())
    removed = low_bins(ratio, g.numel())
    spectrum[:removed] = 0
    spectrum[g.numel() - removed + 1 :] = 0  # the same frequencies with the other sign
    return torch.from_numpy(np.fft.ifft(spectrum).real.reshape(g.shape)) if removed else g


def slowly(
    w: list[Tensor], settings: LocalSettings, ratio: float, mu: float, data: Examples, order: int
) -> tuple[list[Tensor], list[float]]:
    """SGD on the two-layer model, one obvious line after the other."""
    draw = np.random.default_rng(order)
    anchor, velocity, losses = [p.clone() for p in w], [torch.zeros_like(p) for p in w], []
    for _ in range(settings.epochs):
        rows = draw.permutation(len(data))
        for start in range(0, len(rows), settings.batch_size):
            batch = rows[start : start + settings.batch_size]
            leaves = [p.clone().requires_grad_() for p in w]
            hidden = torch.tanh(torch.from_numpy(data.x[batch]) @ leaves[0].T + leaves[1])
            logits = hidden @ leaves[2].T + leaves[3]
            picked = logits.log_softmax(1)[range(len(batch)), data.y[batch]]
            loss = -picked.sum() / len(batch)
            losses.append(loss.item())
            g = [without_low_bins(x, ratio) for x in torch.autograd.grad(loss, leaves)]
            g = [x + mu * (p - a) for x, p, a in zip(g, w, anchor, strict=True)]
            length = math.sqrt(sum(float((x * x).sum()) for x in g))
            if settings.clip_norm and length > settings.clip_norm:
                g = [x * (settings.clip_norm / length) for x in g]
            g = [x + settings.weight_decay * p for x, p in zip(g, w, strict=True)]
            velocity = [settings.momentum * v + x for v, x in zip(velocity, g, strict=True)]
            w = [p - settings.lr * v for p, v in zip(w, velocity, strict=True)]
    return w, losses


PLAIN = LocalSettings(lr=0.2, epochs=2, batch_size=5)  # 22 rows: the last batch of an epoch has 2
CASES: dict[str, tuple[dict[str, Any], float, float]] = {
    "plain": ({}, 0, 0),
    "one epoch": ({"epochs": 1}, 0, 0),
    "one batch": ({"batch_size": 100}, 0, 0),
    "momentum": ({"momentum": 0.9}, 0, 0),
    "weight decay": ({"weight_decay": 0.3}, 0, 0),
    "clipping": ({"clip_norm": 0.2}, 0, 0),
    "filter": ({}, 0.3, 0),
    "prox": ({}, 0, 0.8),
    "filter and prox": ({}, 0.3, 0.8),
    "filter, decay": ({"weight_decay": 0.3}, 0.3, 0),
    "filter, clipping": ({"clip_norm": 0.2}, 0.3, 0),
    "prox, clipping": ({"clip_norm": 0.2}, 0, 3.0),
    "clipping, decay": ({"clip_norm": 0.2, "weight_decay": 0.5}, 0, 0),
    "all": ({"momentum": 0.7, "weight_decay": 0.3, "clip_norm": 0.3, "micro_batches": 3}, 0.3, 0.8),
}


@pytest.mark.parametrize("case", CASES)
def test_the_loop_is_the_slow_loop(case: str) -> None:
    changes, ratio, mu = CASES[case]
    settings = dataclasses.replace(PLAIN, **changes)
    model = mlp()
    before = copy_of(trainable(model))
    trained = run(model, settings, fft(ratio, FedProx(mu)))
    w, losses = slowly(list(before.values()), settings, ratio, mu, examples(), order=5)
    expected = dict(zip(before, w, strict=True))
    # Torch adds 1e-6 to the norm that it clips by.
    tolerance = 2e-5 if settings.clip_norm else 1e-12
    assert_close(copy_of(trainable(model)), expected, tolerance)
    assert_close(trained.update, {name: expected[name] - before[name] for name in before}, tolerance)
    assert trained.steps == len(losses)
    assert trained.loss == pytest.approx(sum(losses) / len(losses), rel=1e-4 if settings.clip_norm else 1e-6)


def test_clipping_does_clip_in_these_cases() -> None:
    clipped = run(mlp(), dataclasses.replace(PLAIN, clip_norm=0.2)).update
    free = run(mlp(), PLAIN).update
    assert all((clipped[name] - free[name]).abs().max() > 1e-2 for name in free)


# Batches


@pytest.mark.parametrize(("rows", "size"), [(22, 5), (20, 5), (3, 5), (1, 1)])
def test_each_epoch_has_every_row_once(rows: int, size: int) -> None:
    got = list(batches(rows, LocalSettings(lr=1, epochs=3, batch_size=size), np.random.default_rng(1)))
    per_epoch = math.ceil(rows / size)
    assert len(got) == 3 * per_epoch
    epochs = [np.concatenate(got[i : i + per_epoch]) for i in range(0, len(got), per_epoch)]
    assert all(sorted(epoch) == list(range(rows)) for epoch in epochs)
    assert [len(batch) for batch in got[:per_epoch]] == [size] * (rows // size) + [rows % size] * (
        rows % size > 0
    )
    if rows > 3:
        assert not np.array_equal(epochs[0], epochs[1])


@pytest.mark.parametrize("pieces", [2, 3, 5])
def test_pieces_of_a_batch_give_the_step_of_the_whole(pieces: int) -> None:
    settings = dataclasses.replace(PLAIN, momentum=0.9, weight_decay=0.1)  # 5 rows in a batch, or 2
    whole = run(mlp(), settings, fft(0.3))
    in_pieces = run(mlp(), dataclasses.replace(settings, micro_batches=pieces), fft(0.3))
    assert_close(in_pieces.update, whole.update)
    assert (in_pieces.steps, in_pieces.loss) == (whole.steps, pytest.approx(whole.loss, rel=1e-6))


def test_bytes_and_float32_are_trained_on_as_well() -> None:
    draw = np.random.default_rng(0)
    pictures = Examples(draw.integers(0, 256, (9, 1, 2, 3), dtype=np.uint8), draw.integers(0, 4, 9), 4)
    model = nn.Sequential(nn.Flatten(), mlp().float())
    update = run(model, LocalSettings(lr=0.1, batch_size=4, micro_batches=3), fft(0.3), pictures).update
    assert all(x.dtype == torch.float32 and x.isfinite().all() for x in update.values())


def test_float32_in_pieces_gives_the_same_step_to_a_hundred_thousandth() -> None:
    data = examples()
    data = dataclasses.replace(data, x=data.x.astype(np.float32))
    whole = run(mlp().float(), PLAIN, data=data)
    in_pieces = run(mlp().float(), dataclasses.replace(PLAIN, micro_batches=4), data=data)
    assert_close(in_pieces.update, whole.update, 1e-5)


# The low band


def low_part(w: Params, ratio: float) -> Params:
    return {name: w[name] - without_low_bins(w[name], ratio) for name in w}


THIRTY = LocalSettings(lr=0.1, epochs=6, batch_size=5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_without_weight_decay_the_low_bins_never_move(momentum: float, mu: float) -> None:
    model = mlp()
    before = copy_of(trainable(model))
    trained = run(model, dataclasses.replace(THIRTY, momentum=momentum, clip_norm=1.0), fft(0.3, FedProx(mu)))
    assert trained.steps == 30
    assert_close(low_part(copy_of(trainable(model)), 0.3), low_part(before, 0.3))
    assert any(low_bins(0.3, x.numel()) and x.abs().max() > 0.1 for x in trained.update.values())


def test_weight_decay_shrinks_the_low_bins_by_the_same_factor_each_step() -> None:
    model = mlp()
    before = low_part(copy_of(trainable(model)), 0.3)
    run(model, dataclasses.replace(THIRTY, weight_decay=0.2), fft(0.3))
    factor = (1 - 0.1 * 0.2) ** 30
    assert_close(low_part(copy_of(trainable(model)), 0.3), {name: factor * x for name, x in before.items()})


def test_without_a_filter_the_low_bins_do_move() -> None:
    update = low_part(run(mlp(), THIRTY).update, 0.3)
    assert all(x.abs().max() > 1e-3 for x in update.values() if low_bins(0.3, x.numel()))


# What switched off changes no bit


@pytest.mark.parametrize(
    "algorithm",
    [
        Algorithm(FedProx(0.0)),
        filtered(LocalRule(), build(FilterSettings("none"), mlp())),
        filtered(LocalRule(), build(FilterSettings("fft", 0.0), mlp())),
        filtered(LocalRule(), build(FilterSettings("fft", 0.9, min_ndim=5), mlp())),
        filtered(FedProx(0.0), build(FilterSettings("none", 0.0), mlp())),
    ],
    ids=repr,
)
def test_a_term_that_is_off_is_fedavg(algorithm: Algorithm) -> None:
    settings = dataclasses.replace(PLAIN, momentum=0.9, weight_decay=0.1, clip_norm=0.5)
    assert_equal(run(mlp(), settings, algorithm).update, run(mlp(), settings).update)


def test_the_same_again_gives_the_same_bits_and_another_order_others() -> None:
    first = run(mlp(), PLAIN, fft(0.3)).update
    assert_equal(run(mlp(), PLAIN, fft(0.3)).update, first)
    other = run(mlp(), PLAIN, fft(0.3), order=6).update
    assert not all(torch.equal(other[name], first[name]) for name in first)


# Noise


def dropout_model() -> nn.Module:
    return nn.Sequential(mlp(), nn.Dropout(0.5)).double()


def test_dropout_follows_the_noise_seed_alone() -> None:
    first = run(dropout_model(), PLAIN, noise=1).update
    torch.manual_seed(77)
    assert_equal(run(dropout_model(), PLAIN, noise=1).update, first)
    other = run(dropout_model(), PLAIN, noise=2).update
    assert not all(torch.equal(other[name], first[name]) for name in first)


def test_steps_do_not_share_their_dropout() -> None:
    still = LocalSettings(lr=1e-12, batch_size=1)  # the model all but stands still, so only noise differs
    sums = [0.0]
    for steps in range(1, 6):
        settings = dataclasses.replace(still, epochs=steps)
        sums.append(steps * run(dropout_model(), settings, data=examples(rows=1)).loss)
    of_step = np.diff(sums)
    assert of_step.max() - of_step.min() > 0.01


def test_global_random_state_stays_as_it_was() -> None:
    torch.manual_seed(3)
    before, numpys = torch.get_rng_state(), np.random.get_state()[1].copy()
    run(dropout_model(), PLAIN)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(Diverged):
        run(dropout_model(), PLAIN, data=with_hole(0))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpys)


# Whatever a model is made of


class Odd(nn.Module):
    """Tied weights, a frozen layer, BatchNorm, and a layer that takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, bias=False)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(6, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.unused = nn.Linear(6, 50)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.norm(self.frozen(torch.tanh(self.tied(torch.tanh(self.first(x))))))
        return logits


@pytest.fixture
def odd() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Odd().double()


FULL = dataclasses.replace(PLAIN, momentum=0.9, weight_decay=0.1, clip_norm=1.0)


@pytest.mark.parametrize(
    "algorithm", [Algorithm(), fft(0.3), Algorithm(FedProx(0.5)), fft(0.3, FedProx(0.5))], ids=repr
)
def test_frozen_tied_and_unused_parameters(odd: nn.Module, algorithm: Algorithm) -> None:
    before = {name: x.clone() for name, x in odd.state_dict().items()}
    update = run(odd, FULL, algorithm).update
    after = odd.state_dict()
    assert set(update) == {
        "first.weight",
        "tied.bias",
        "norm.weight",
        "norm.bias",
        "unused.weight",
        "unused.bias",
    }
    for name in ("frozen.weight", "frozen.bias", "unused.weight", "unused.bias"):
        assert torch.equal(after[name], before[name]), name
    assert not update["unused.weight"].any() and not update["unused.bias"].any()
    for name in ("first.weight", "tied.bias", "norm.weight", "norm.bias"):
        assert update[name].abs().max() > 1e-3, name
    assert torch.equal(after["first.weight"], after["tied.weight"])
    assert torch.equal(carried(odd)["frozen.weight"], before["frozen.weight"])


class OnceUsed(nn.Module):
    """A layer that takes part in the first batch only, beside one that always does."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.once = nn.Linear(6, 4), nn.Linear(6, 4)
        self.batches = 0

    def forward(self, x: Tensor) -> Tensor:
        self.batches += 1
        logits: Tensor = self.always(x) + (self.once(x) if self.batches == 1 else 0)
        return logits


def test_a_layer_that_a_batch_does_not_use_stays_in_that_step() -> None:
    # As with torch.optim.SGD: neither momentum nor weight decay moves what has no gradient.
    def update(epochs: int) -> Params:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = OnceUsed().double()
        return run(model, dataclasses.replace(FULL, epochs=epochs, batch_size=22)).update

    one, three = update(epochs=1), update(epochs=3)
    assert torch.equal(one["once.weight"], three["once.weight"]) and one["once.weight"].any()
    assert not torch.equal(one["always.weight"], three["always.weight"])


def test_batch_norm_statistics_move_and_are_carried_not_updated(odd: nn.Module) -> None:
    odd.eval()
    trained = run(odd, PLAIN)
    beside = carried(odd)
    assert set(beside) >= {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert not set(beside) & set(trained.update)
    assert beside["norm.num_batches_tracked"].item() == trained.steps == 10
    assert beside["norm.running_mean"].any()


def test_the_update_is_not_the_models_own_memory() -> None:
    model = mlp()
    update = run(model, PLAIN).update
    kept = copy_of(update)
    for p in model.parameters():
        p.data.zero_()
    assert_equal(update, kept)
    assert not any(x.requires_grad for x in update.values())


def test_bf16_keeps_parameters_and_update_in_float32() -> None:
    data = examples()
    data = dataclasses.replace(data, x=data.x.astype(np.float32))
    seen: list[torch.dtype] = []
    model = mlp().float()
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    update = run(model, dataclasses.replace(FULL, amp="bf16"), fft(0.3), data).update
    assert set(seen) == {torch.bfloat16}
    assert {x.dtype for x in [*update.values(), *model.parameters()]} == {torch.float32}
    assert_close(update, run(mlp().float(), FULL, fft(0.3), data).update, 0.05)


def test_fp16_drops_the_steps_that_overflow_and_is_near_float32_otherwise() -> None:
    data = examples()
    data = dataclasses.replace(data, x=30 * data.x.astype(np.float32))
    settings = dataclasses.replace(PLAIN, lr=1e-3, epochs=12, amp="fp16")
    seen: list[Params] = []

    def noting(g: Params) -> Params:
        seen.append(copy_of(g))
        return g

    model = mlp().float()
    trained = run(model, settings, filtered(LocalRule(), noting), data)
    # 2^16 times a loss is too much for float16: the first steps halve the factor, and are not taken.
    assert 0 < trained.steps < 12 * 5 and trained.steps == len(seen)
    assert all(x.isfinite().all() for g in seen for x in g.values())
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    whole = run(mlp().float(), dataclasses.replace(settings, amp="off"), data=data)
    assert trained.loss == pytest.approx(whole.loss, rel=0.1)


def test_a_gradient_that_overflows_in_every_step_is_told() -> None:
    data = examples(rows=4)
    data = dataclasses.replace(data, x=data.x.astype(np.float32) * 1e6)
    with pytest.raises(Diverged, match="overflowed in fp16 in every local step; try amp=bf16"):
        run(mlp().float(), dataclasses.replace(PLAIN, epochs=1, amp="fp16"), data=data)


# When it goes wrong


def with_hole(row: int) -> Examples:
    data = examples()
    data.x[row] = np.nan
    return data


@pytest.mark.parametrize("row", [0, 7, 21])
def test_divergence_names_the_step(row: int) -> None:
    shuffled = np.random.default_rng(5).permutation(22).tolist()
    step = shuffled.index(row) // PLAIN.batch_size + 1
    with pytest.raises(Diverged) as refused:
        run(mlp(), PLAIN, data=with_hole(row))
    assert str(refused.value) == f"the loss became nan in local step {step}"


@pytest.mark.parametrize("algorithm", [Algorithm(), fft(0.3)], ids=repr)
def test_a_huge_learning_rate_diverges(algorithm: Algorithm) -> None:
    with pytest.raises(Diverged, match=r"the loss became (inf|nan) in local step \d+"):
        run(mlp(), LocalSettings(lr=1e200, epochs=9, batch_size=5, momentum=0.9), algorithm)


def test_no_examples_are_refused() -> None:
    nothing = Examples(np.zeros((0, 6)), np.zeros(0, dtype=np.int64), 4)
    with pytest.raises(ValueError, match="no examples"):
        run(mlp(), PLAIN, data=nothing)


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match="empty parameter list"):
        run(mlp().requires_grad_(False), PLAIN)
