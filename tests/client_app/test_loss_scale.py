"""The factor on float16 losses."""

import torch

from client_app.loss_scale import LossScale, is_finite


def test_it_halves_after_an_overflow_and_doubles_after_many_good_steps() -> None:
    scale = LossScale(8.0, growth=3)
    assert scale.after(False) == LossScale(4.0, growth=3)
    twice = scale.after(True).after(True)
    assert (twice.factor, twice.good) == (8.0, 2)
    assert twice.after(True) == LossScale(16.0, growth=3)
    assert twice.after(False) == LossScale(4.0, growth=3)


def test_unscaling_is_exact() -> None:
    g = {"w": torch.tensor([3.0, -0.1])}
    assert torch.equal(LossScale(2.0**10).unscaled({"w": g["w"] * 2**10})["w"], g["w"])


def test_one_infinity_is_enough() -> None:
    assert is_finite({"a": torch.ones(3), "b": torch.zeros(1)})
    for bad in (torch.inf, torch.nan):
        assert not is_finite({"a": torch.ones(3), "b": torch.tensor([0.0, bad])})
