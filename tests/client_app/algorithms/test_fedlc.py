"""FedLC's calibrated loss by hand."""

import dataclasses

import pytest
import torch
from torch import Tensor

from client_app.algorithms.fedlc import CalibratedLoss
from tests.client_app.algorithms.small import ctx

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


@pytest.mark.parametrize("paper", [False, True])
def test_fedlc_of_half_precision_logits_is_a_float32_loss(paper: bool) -> None:
    context = dataclasses.replace(ctx(), counts=COUNTS)
    loss = CalibratedLoss(1.0, paper_denominator=paper)
    half = loss(LOGITS.bfloat16(), torch.tensor([0]), context)
    assert half.dtype == torch.float32
    assert float(half) == pytest.approx(lc(loss), abs=1e-6)  # the logits are exact in bfloat16
