"""Which parameter is the classifier's head, and what is said where that cannot be told."""

import pytest
import torch
from torch import nn

from common.errors import ModelError
from common.models import Head, build, resolve_head


def two_heads() -> nn.Module:
    model = nn.Sequential()
    model.add_module("stem", nn.Linear(6, 4))
    model.add_module("aux", nn.Linear(4, 3))
    model.add_module("out", nn.Linear(4, 3, bias=False))
    model.add_module("norm", nn.LayerNorm(3))
    return model


def test_the_head_is_the_last_matrix_with_a_row_a_class() -> None:
    assert resolve_head(two_heads(), 3) == Head("out.weight", None, (3, 4))
    assert resolve_head(two_heads(), 4) == Head("stem.weight", "stem.bias", (4, 6))
    assert resolve_head(build("cnn5", (1, 8, 8), 10, 0), 10) == Head("fc2.weight", "fc2.bias", (10, 64))


def test_a_named_head_wins() -> None:
    assert resolve_head(two_heads(), 3, "aux.weight") == Head("aux.weight", "aux.bias", (3, 4))


def test_frozen_parameters_are_no_heads() -> None:
    model = two_heads()
    model.out.weight.requires_grad_(False)
    assert resolve_head(model, 3) == Head("aux.weight", "aux.bias", (3, 4))


def test_heads_of_more_axes_and_without_a_prefix() -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(3, 2, 1, 1))
    model.bias = nn.Parameter(torch.zeros(3))
    assert resolve_head(model, 3) == Head("weight", "bias", (3, 2, 1, 1))
    model.bias = nn.Parameter(torch.zeros(2))
    assert resolve_head(model, 3).bias is None


@pytest.mark.parametrize(
    ("classes", "name", "sentence"),
    [
        (
            5,
            "",
            "no head found: no trainable parameter has 5 rows, one a class; there are "
            '"stem.weight" (4, 6), "aux.weight" (3, 4), "out.weight" (3, 4). '
            "Name the head's weight with the key head",
        ),
        (3, "aux.wieght", 'head "aux.wieght" is not a parameter of the model. Did you mean "aux.weight"?'),
        (
            3,
            "q",
            'head "q" is not a parameter of the model. There are '
            '"stem.weight" (4, 6), "aux.weight" (3, 4), "out.weight" (3, 4)',
        ),
        (
            3,
            "stem.weight",
            'head "stem.weight" must be a trainable parameter of two or more axes with 3 rows, one a class; '
            'it is (4, 6). Candidates: "aux.weight", "out.weight"',
        ),
        (
            3,
            "norm.weight",
            'head "norm.weight" must be a trainable parameter of two or more axes with 3 rows, one a class; '
            'it is (3,). Candidates: "aux.weight", "out.weight"',
        ),
    ],
)
def test_heads_that_cannot_be_told(classes: int, name: str, sentence: str) -> None:
    with pytest.raises(ModelError) as caught:
        resolve_head(two_heads(), classes, name)
    assert str(caught.value) == sentence


def test_a_frozen_head_is_refused_by_name() -> None:
    model = two_heads()
    model.out.weight.requires_grad_(False)
    with pytest.raises(ModelError, match="it is a frozen parameter"):
        resolve_head(model, 3, "out.weight")


def test_errors_list_only_the_last_of_many_tensors() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(15)))
    with pytest.raises(ModelError, match=r'there are "3\.weight".*"14\.weight" \(2, 2\), 3 earlier ones'):
        resolve_head(model, 9)
