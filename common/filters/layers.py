"""Which of a model's tensors a filter works on."""

import re
from fnmatch import fnmatchcase

from torch import nn

from common.errors import ConfigError, nearest
from common.params import trainable

AUTO = "auto"
ALL = "all"

# The weight that turns patches into tokens, in timm, torchvision and transformers.
PATCH_EMBEDDINGS = ("patch_embed.proj.weight", "conv_proj.weight", "patch_embeddings.projection.weight")
_VISION_TRANSFORMER = re.compile(r"VisionTransformer|ViT")
_HINT = 'Say filter-layers=all, or patterns of names such as "blocks.0.*,head.weight"'


def chosen(model: nn.Module, layers: str) -> list[str]:
    """The names of the trainable tensors that ``layers`` means, in the model's order; tied ones once.

    auto      all but the weights of ``nn.Embedding``, whose rows have no order; of a vision transformer
              only the patch embedding (SpecGradFilter)
    all       all
    patterns  ``fnmatch`` patterns separated by commas; with "!" before it, what to leave out. Only
              such ones leave out of auto. Embeddings that a pattern matches are in

    Raises ConfigError for a vision transformer without a known patch embedding, and for a pattern that
    matches no tensor.
    """
    names = list(trainable(model))
    if layers == ALL:
        return names
    return _auto(model) if layers == AUTO else _matching(model, names, layers)


def embeddings(model: nn.Module) -> set[str]:
    """The names of trainable tensors that are an embedding table, also where another layer shares it."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    return {name for name, p in trainable(model).items() if id(p) in tables}


def patch_embeddings(model: nn.Module) -> list[str]:
    """The names of trainable tensors that known vision transformers give their patch embedding."""
    return [
        name for name in trainable(model) if any(f".{name}".endswith(f".{end}") for end in PATCH_EMBEDDINGS)
    ]


def is_vision_transformer(model: nn.Module) -> bool:
    """Whether a class in the model is called so, or it has a patch embedding of a known name."""
    called = any(_VISION_TRANSFORMER.search(type(module).__name__) for module in model.modules())
    return called or bool(patch_embeddings(model))


def _auto(model: nn.Module) -> list[str]:
    if not is_vision_transformer(model):
        tables = embeddings(model)
        return [name for name in trainable(model) if name not in tables]
    patches = patch_embeddings(model)
    if not patches:
        raise ConfigError(
            "the model is a vision transformer, of which only the patch embedding is filtered, but no "
            f"trainable tensor has one of its names ({', '.join(PATCH_EMBEDDINGS)}). {_HINT}"
        )
    return patches


def _matching(model: nn.Module, names: list[str], layers: str) -> list[str]:
    patterns = [pattern.strip() for pattern in layers.split(",") if pattern.strip()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern.removeprefix("!")) for name in names):
            hint = nearest(pattern.removeprefix("!"), [AUTO, ALL, *names])
            raise ConfigError(f'filter-layers: "{pattern}" matches no trainable tensor. {hint}'.rstrip())
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    unwanted = [pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")]
    among = [name for name in names if _any(name, wanted)] if wanted else _auto(model)
    return [name for name in among if not _any(name, unwanted)]


def _any(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
