"""Batches, the pieces that they are worked through in, and types of data."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from client_app.algorithms.rule import LocalContext
from client_app.job import LocalSettings
from client_app.training import batches
from common.datasets import Examples
from common.errors import ModelError
from common.params import copy_of, trainable
from tests.client_app.training.loop import PLAIN, assert_close, examples, fft, job_of, mlp, run


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


@pytest.mark.parametrize(("rows", "pieces"), [(6, 1), (11, 1), (6, 4), (5, 5)])
def test_batch_norm_never_gets_a_single_row(rows: int, pieces: int) -> None:
    sizes: list[int] = []
    model = nn.Sequential(mlp(), nn.BatchNorm1d(4).double())
    model.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    settings = dataclasses.replace(PLAIN, epochs=1, micro_batches=pieces)  # 5 rows in a batch
    trained = run(model, settings, data=examples(rows))
    assert min(sizes) >= 2 and sum(sizes) == rows and trained.steps == rows // 5


def test_batch_norm_on_a_single_row_is_told() -> None:
    model = nn.Sequential(mlp(), nn.BatchNorm1d(4).double())
    for settings, rows in ((PLAIN, 1), (dataclasses.replace(PLAIN, batch_size=1), 9)):
        with pytest.raises(ModelError, match=r"BatchNorm1d takes batches of at least 2 rows; got batch-size"):
            run(model, settings, data=examples(rows))


def test_all_rows_gradient_of_batch_norm_takes_no_single_row_either() -> None:
    model = nn.Sequential(mlp(), nn.BatchNorm1d(4).double())
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    ctx = LocalContext(copy_of(dict(model.named_parameters())), 0.1, {}, {}, None)
    settings = dataclasses.replace(PLAIN, fewest=2)
    job_of(model, examples(11), settings).full_gradient(ctx)
    assert sizes == [5, 6]


def test_where_batch_norm_can_take_a_single_row_or_does_not_train_it_may() -> None:
    class Frozen(nn.BatchNorm1d):
        """Statistics that stay, as in a model whose first layers are trained already."""

        def train(self, mode: bool = True) -> "Frozen":
            return super().train(False)

    one = Examples(np.ones((1, 1, 3, 3)), np.array([1]), 4)
    pictures = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(9, 4)).double()
    assert run(pictures, PLAIN, data=one).steps == PLAIN.epochs
    frozen = nn.Sequential(mlp(), Frozen(4).double())
    assert run(frozen, dataclasses.replace(PLAIN, batch_size=1), data=examples(3)).steps == 3 * PLAIN.epochs


def test_the_gradient_of_all_rows_weighs_rows_and_not_batches() -> None:
    """22 rows in batches of 5: the last one has 2."""
    model, data = mlp(), examples()
    found = job_of(model, data, PLAIN).full_gradient(
        LocalContext(copy_of(trainable(model)), 0.1, {}, {}, None)
    )
    loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(data.x)), torch.from_numpy(data.y))
    for (name, _), g in zip(
        model.named_parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(found[name], g)
