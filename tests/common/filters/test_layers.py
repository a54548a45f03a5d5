"""Which tensors are filtered: embeddings, vision transformers, patterns, tied and frozen ones."""

import pytest
import torch
from torch import nn

from common.errors import ConfigError
from common.filters.layers import chosen, embeddings, is_vision_transformer, patch_embeddings


class Text(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 8)
        self.bags = nn.EmbeddingBag(20, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 50)
        if tied:
            self.head.weight = self.tokens.weight


class VisionTransformer(nn.Module):
    """Called as torchvision and timm call theirs."""

    def __init__(self, **patches: nn.Module) -> None:
        super().__init__()
        for name, module in patches.items():
            self.add_module(name, module)
        self.head = nn.Linear(8, 4)


class Plain(VisionTransformer):
    """The same by another name."""


def nested(*names: str) -> nn.Module:
    """A convolution at the end of a path of modules."""
    module: nn.Module = nn.Conv2d(3, 8, 4)
    for name in reversed(names):
        module = nn.ModuleDict({name: module})
    return module


BODY = ["body.weight", "body.bias"]
HEAD = ["head.weight", "head.bias"]


def test_embeddings_are_left_out_unless_asked_for() -> None:
    assert embeddings(Text()) == {"tokens.weight", "bags.weight"}
    assert chosen(Text(), "auto") == [*BODY, *HEAD]
    assert chosen(Text(), "all") == ["tokens.weight", "bags.weight", *BODY, *HEAD]
    assert chosen(Text(), "*.weight") == ["tokens.weight", "bags.weight", "body.weight", "head.weight"]


def test_a_tied_tensor_stands_once_and_is_an_embedding() -> None:
    tied = Text(tied=True)
    assert chosen(tied, "auto") == [*BODY, "head.bias"]
    assert chosen(tied, "all") == ["tokens.weight", "bags.weight", *BODY, "head.bias"]


def test_frozen_tensors_are_not_there() -> None:
    model = Text()
    model.body.requires_grad_(False)
    assert chosen(model, "auto") == HEAD
    with pytest.raises(ConfigError, match=r'"body\.\*" matches no trainable tensor'):
        chosen(model, "body.*")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (("patch_embed", "proj"), "patch_embed.proj.weight"),
        (("conv_proj",), "conv_proj.weight"),
        (("embeddings", "patch_embeddings", "projection"), "embeddings.patch_embeddings.projection.weight"),
    ],
)
@pytest.mark.parametrize("kind", [VisionTransformer, Plain])
def test_of_a_vision_transformer_only_the_patch_embedding(
    kind: type[VisionTransformer], path: tuple[str, ...], name: str
) -> None:
    first, *rest = path
    model = kind(**{first: nested(*rest)})
    assert is_vision_transformer(model)
    assert chosen(model, "auto") == [name]
    assert chosen(model, "all") == [name, name.replace("weight", "bias"), *HEAD]
    assert chosen(nn.ModuleDict({"inner": model}), "auto") == [f"inner.{name}"]


def test_a_name_must_match_whole_parts() -> None:
    model = Plain(my_conv_proj=nn.Conv2d(3, 8, 4))
    assert patch_embeddings(model) == [] and not is_vision_transformer(model)


@pytest.mark.parametrize(
    "name", ["VisionTransformer", "ViT", "SimpleViT", "ViTModel", "ViTForImageClassification"]
)
def test_a_vision_transformer_without_a_known_patch_embedding_is_an_error(name: str) -> None:
    model = nn.Sequential(type(name, (VisionTransformer,), {})(stem=nn.Conv2d(3, 8, 4)))
    with pytest.raises(ConfigError) as error:
        chosen(model, "auto")
    assert str(error.value) == (
        "the model is a vision transformer, of which only the patch embedding is filtered, but no trainable "
        "tensor has one of its names (patch_embed.proj.weight, conv_proj.weight, "
        "patch_embeddings.projection.weight). Say filter-layers=all, or patterns of names such as "
        '"blocks.0.*,head.weight"'
    )
    assert chosen(model, "all")[0] == "0.stem.weight"


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("body.*", BODY),
        (" body.* , head.weight ", [*BODY, "head.weight"]),
        ("head.weight,body.weight", ["body.weight", "head.weight"]),  # the model's order
        ("!head.*", BODY),  # of auto: no embeddings
        ("!*.bias", ["body.weight", "head.weight"]),
        ("*,!*.bias,!tokens.*", ["bags.weight", "body.weight", "head.weight"]),
        ("*,!*", []),
    ],
)
def test_patterns(layers: str, expected: list[str]) -> None:
    assert chosen(Text(), layers) == expected


@pytest.mark.parametrize("layers", ["hed.weight", "body.*,hed.weight", "!hed.weight"])
def test_a_pattern_that_matches_nothing_is_an_error(layers: str) -> None:
    pattern = layers.split(",")[-1]
    with pytest.raises(ConfigError) as error:
        chosen(Text(), layers)
    assert str(error.value) == (
        f'filter-layers: "{pattern}" matches no trainable tensor. Did you mean "head.weight"?'
    )


def test_auto_misspelt_is_an_error() -> None:
    with pytest.raises(ConfigError, match='Did you mean "auto"'):
        chosen(Text(), "autoo")


def test_torchvisions_own() -> None:
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        assert chosen(models.vit_b_16(), "auto") == ["conv_proj.weight"]
        resnet = models.resnet18()
    assert chosen(resnet, "auto") == [name for name, _ in resnet.named_parameters()]
