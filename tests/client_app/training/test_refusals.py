"""When training goes wrong, or cannot begin."""

import numpy as np
import pytest

from client_app.algorithms.rule import Algorithm
from client_app.job import Diverged, LocalSettings
from common.datasets import Examples
from tests.client_app.training.loop import PLAIN, fft, mlp, run, with_hole


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
