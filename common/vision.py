"""torchvision's nets as federations take them: GroupNorm for BatchNorm, and stems that fit small images.

Images of less than 64 pixels a side keep their size in the first layer, as is usual for CIFAR: a 3x3
convolution without a stride, and no pooling after it; vit-tiny's patches have 4 pixels there. Weights start
at random.
"""

from collections.abc import Callable
from functools import partial

from torch import nn

from common.errors import ModelError
from common.nets import NORM_GROUPS, Shape, start_like_he

try:
    from torchvision.models import DenseNet, ResNet, VisionTransformer
    from torchvision.models.resnet import BasicBlock, Bottleneck
except (ImportError, RuntimeError) as error:  # the latter for one that was built for another PyTorch
    raise ModelError(f"this model needs torchvision, which cannot be imported: {error}") from None

SMALL = 64  # pixels a side from which on images are shrunk by the first layers


def resnet(input_shape: Shape, classes: int, block: type[nn.Module], layers: list[int]) -> nn.Module:
    """A ResNet (He et al., 2016) of these blocks, with ``layers`` in each of four stages."""
    net: nn.Module = ResNet(block, layers, num_classes=classes, norm_layer=_group_norm)
    net.conv1 = _stem(input_shape)
    if _small(input_shape):
        net.maxpool = nn.Identity()
    return net


def densenet121(input_shape: Shape, classes: int) -> nn.Module:
    """DenseNet-121 (Huang et al., 2017). Raises ModelError for images of less than 8x8."""
    if min(input_shape[1:]) < 8:
        raise ModelError(f'model "densenet121" takes images of at least 8x8; the data has {input_shape[1:]}')
    net: nn.Module = DenseNet(num_classes=classes)
    for module in list(net.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, _group_norm(child.num_features))
    features = net.get_submodule("features")
    features.conv0 = _stem(input_shape)
    if _small(input_shape):
        features.pool0 = nn.Identity()
    return net


def vit(input_shape: Shape, classes: int, name: str, heads: int, small_patch: int) -> nn.Module:
    """A vision transformer of 12 layers with so many ``heads``, of 64 units each (Dosovitskiy et al., 2021).

    Patches have 16 pixels a side, and ``small_patch`` in small images. Raises ModelError for other images
    than squares of whole patches.
    """
    channels, height, width = input_shape
    patch, units = small_patch if _small(input_shape) else 16, 64 * heads
    if height != width or height % patch:
        raise ModelError(
            f'model "{name}" takes square images, of a multiple of {patch} pixels a side at this size; '
            f"the data has {height}x{width}"
        )
    net: nn.Module = VisionTransformer(height, patch, 12, heads, units, 4 * units, num_classes=classes)
    if channels != 3:
        net.conv_proj = nn.Conv2d(channels, units, patch, patch)
        start_like_he(net.conv_proj)
    return net


NETS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "resnet18": partial(resnet, block=BasicBlock, layers=[2, 2, 2, 2]),
    "resnet50": partial(resnet, block=Bottleneck, layers=[3, 4, 6, 3]),
    "densenet121": densenet121,
    "vit-tiny": partial(vit, name="vit-tiny", heads=3, small_patch=4),  # ViT-Ti of Touvron et al., 2021
    "vit-b16": partial(vit, name="vit-b16", heads=12, small_patch=16),
}


def _small(input_shape: Shape) -> bool:
    return min(input_shape[1:]) < SMALL


def _stem(input_shape: Shape) -> nn.Conv2d:
    size, stride = (3, 1) if _small(input_shape) else (7, 2)
    stem = nn.Conv2d(input_shape[0], 64, size, stride, padding=size // 2, bias=False)
    start_like_he(stem)
    return stem


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(NORM_GROUPS, channels)
