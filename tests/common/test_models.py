"""Models by name: their sizes, their determinism, what they refuse."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from common.errors import ModelError
from common.models import MODELS, build, count_parameters, require_logits, resolve_head
from common.nets import ResidualBlock
from tests.modules import SMALL, TEXT, importable

REPO = Path(__file__).parents[2]
SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 4, 4), (1, 9, 30), (3, 64, 48)]


KNOWN = "mlp4, cnn5, resnet20, wrn56-2, resnet18, resnet50, densenet121, vit-tiny, vit-b16, dan"
# Transformers take squares of whole patches, and DenseNet halves an image four times.
TAKEN = {
    "vit-tiny": [shape for shape in SHAPES if shape[1] == shape[2]],
    "vit-b16": [(3, 32, 32)],
    "densenet121": [shape for shape in SHAPES if min(shape[1:]) >= 8],
    "dan": [TEXT],
}
FITTING = [(name, shape) for name in MODELS for shape in TAKEN.get(name, SHAPES)]


def digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


@pytest.mark.parametrize(("name", "shape"), FITTING)
def test_every_model_gives_logits_and_gradients(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, shape, 7, seed=0)
    logits = model(3 * torch.rand(2, *shape))
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert resolve_head(model, 7).shape[0] == 7


# mlp4 on 64 inputs: 64*200+200 + 200*100+100 + 100*50+50 + 50*10+10 = 38,660.
# cnn5 on 1x8x8, whose last pooling leaves 2x2 positions of 64 channels:
#   9*32+32 + 9*32*48+48 + 9*48*64+64 + 256*64+64 + 64*10+10 = 59,002.
# resnet20 on 3x32x32: convolutions 432 + 13,824 + 50,688 + 202,752, norms 1,376, fc 650 = 269,722,
#   in 19 convolutions, 19 norms of two tensors, and fc's two: 59 tensors.
# wrn56-2: the stem 432, 9 blocks a stage of 32, 64 and 128 channels, 55 norms of two tensors, fc 1,290:
STAGES = [(16, 32), (32, 64), (64, 128)]
WRN = 432 + 2 * 16 + sum(9 * i * o + 17 * 9 * o * o + 18 * 2 * o for i, o in STAGES) + 128 * 10 + 10
# resnet18, resnet50 and densenet121: torchvision's of 1000 classes less 990 outputs, and a 3x3 stem for the 7x7 one.
# vit-tiny on 64 patches of 4x4x3: 192 * 48 + 192, a token, 65 positions, 12 layers of 12 * 192^2 + 13 * 192 numbers,
# a norm, and the head. vit-b16 has the same parts, 768 wide, for 4 patches of 16x16x3.
# dan: 16,384 embeddings of 64, a norm, and two layers.
VIT = 192 * 48 + 192 + 192 + 65 * 192 + 12 * (12 * 192**2 + 13 * 192) + 2 * 192 + 192 * 10 + 10
VIT_B = 768 * 768 + 768 + 768 + 5 * 768 + 12 * (12 * 768**2 + 13 * 768) + 2 * 768 + 768 * 10 + 10
DAN = 16_384 * 64 + 2 * 64 + 64 * 64 + 64 + 64 * 10 + 10


@pytest.mark.parametrize(
    ("name", "shape", "parameters", "tensors"),
    [
        ("mlp4", (1, 8, 8), 38_660, 8),
        ("cnn5", (1, 8, 8), 59_002, 10),
        ("resnet20", (3, 32, 32), 269_722, 59),
        ("wrn56-2", (3, 32, 32), WRN, 167),
        ("resnet18", (3, 32, 32), 11_173_962, 62),
        ("resnet50", (3, 32, 32), 23_520_842, 161),
        ("densenet121", (3, 32, 32), 6_956_426, 364),
        ("vit-tiny", (3, 32, 32), VIT, 152),
        ("vit-b16", (3, 32, 32), VIT_B, 152),
        ("dan", TEXT, DAN, 7),
    ],
)
def test_sizes(name: str, shape: tuple[int, ...], parameters: int, tensors: int) -> None:
    model = build(name, shape, 10, seed=0)
    assert count_parameters(model) == parameters
    assert len(list(model.parameters())) == tensors


def test_parameter_names_of_the_cnn() -> None:
    model = build("cnn5", (1, 8, 8), 10, seed=0)
    layers = [name.removesuffix(".weight") for name, p in model.named_parameters() if p.ndim > 1]
    assert layers == ["conv1", "conv2", "conv3", "fc1", "fc2"]


def test_mlp_takes_plain_features() -> None:
    assert build("mlp4", (13,), 3, seed=0)(torch.randn(5, 13)).shape == (5, 3)


def test_the_shortcut_strides_and_pads_channels_with_zeros() -> None:
    block = ResidualBlock(16, 32, stride=2)
    nn.init.zeros_(block.conv2.weight)  # silences the inner path, so only the shortcut is left
    x = torch.randn(2, 16, 8, 8)
    expected = torch.zeros(2, 32, 4, 4)
    for channel in range(16):
        for row in range(4):
            for column in range(4):
                expected[:, channel + 8, row, column] = x[:, channel, 2 * row, 2 * column].clamp(min=0)
    assert torch.equal(block(x), expected)


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_alone_decides_the_first_parameters(name: str) -> None:
    torch.manual_seed(1)
    one = digest(build(name, SMALL[name], 10, seed=5))
    torch.manual_seed(2)
    assert digest(build(name, SMALL[name], 10, seed=5)) == one
    assert digest(build(name, SMALL[name], 10, seed=6)) != one


def test_two_other_processes_build_the_same_bytes() -> None:
    code = (
        "import hashlib; from common.models import build; m = build('cnn5', (1, 8, 8), 10, 3); "
        "print(hashlib.sha256(b''.join(p.detach().numpy().tobytes() for p in m.parameters())).hexdigest())"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], cwd=REPO, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    digests = {process.communicate()[0].strip() for process in running}
    assert digests == {digest(build("cnn5", (1, 8, 8), 10, 3))}


def test_building_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    build("cnn5", (1, 8, 8), 10, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_signals_keep_their_size_at_the_start() -> None:
    x = torch.randn(64, 1, 8, 8)
    for name in ("mlp4", "cnn5"):
        spread = build(name, (1, 8, 8), 10, seed=0)(x).std().item()
        assert 0.1 < spread < 10


# The user's own models


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = (
        "from torch import nn\n"
        "def linear(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * 64, classes))\n"
        "def nothing(shape, classes): return None\n"
        "def breaks(shape, classes): raise ValueError('too small')\n"
    )
    with importable(tmp_path, monkeypatch, own_models=source):
        yield


def test_a_function_of_the_users_own(own_models: None) -> None:
    model = build("own_models:linear", (1, 8, 8), 4, seed=1)
    assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 4)
    assert digest(model) == digest(build("own_models:linear", (1, 8, 8), 4, seed=1))
    assert digest(model) != digest(build("own_models:linear", (1, 8, 8), 4, seed=2))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "resnet2",
            f'unknown model "resnet2"; takes {KNOWN} or module:function. Did you mean "resnet20"?',
        ),
        ("x", f'unknown model "x"; takes {KNOWN} or module:function.'),
        ("own_modls:f", '"own_modls:f": there is no module "own_modls" on the Python path'),
        (
            "own_models:liner",
            '"own_models:liner": module "own_models" has no function "liner". Did you mean "linear"?',
        ),
        (
            "own_models:nothing",
            '"own_models:nothing" must return a torch.nn.Module for (input_shape, classes); '
            "it returned NoneType",
        ),
        ("own_models:breaks", '"own_models:breaks" failed with ValueError: too small'),
    ],
)
def test_models_that_cannot_be_built(own_models: None, name: str, sentence: str) -> None:
    with pytest.raises(ModelError) as caught:
        build(name, (1, 8, 8), 10, seed=0)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("name", ["cnn5", "resnet20"])
@pytest.mark.parametrize("shape", [(64,), (1, 3, 8), (1, 8, 3)])
def test_image_models_refuse_other_inputs(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=rf'"{name}" takes images .* at least 4x4; .* shape \({shape[0]}'):
        build(name, shape, 10, seed=0)


@pytest.mark.parametrize("shape", [(64,), (1, 8, 8)])
def test_a_text_model_refuses_other_inputs(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ModelError, match=r'"dan" takes texts, whose inputs have the shape \(256,\); the data'
    ):
        build("dan", shape, 10, seed=0)


def test_a_text_model_averages_the_words_that_are_there() -> None:
    model = build("dan", TEXT, 3, seed=0)
    x = torch.zeros(3, *TEXT)
    x[0, :4] = torch.tensor([5.0, 9, 9, 16_383])
    x[1, 7] = 5
    w = dict(model.named_parameters())
    table = w["embedding.weight"]
    means = torch.stack([(table[5] + 2 * table[9] + table[16_383]) / 4, table[5], torch.zeros(64)])
    h = F.layer_norm(means, (64,), w["norm.weight"], w["norm.bias"])
    h = (h @ w["fc1.weight"].T + w["fc1.bias"]).clamp(min=0)
    torch.testing.assert_close(model(x), h @ w["fc2.weight"].T + w["fc2.bias"])
    model(x).sum().backward()
    assert table.grad is not None
    # A text without words has no part in it, nor has what fills a row up.
    assert table.grad.abs().sum(1).nonzero().flatten().tolist() == [5, 9, 16_383]


def test_torchvisions_nets_have_its_own_sizes_but_for_stem_and_classes() -> None:
    vision = pytest.importorskip("torchvision.models")
    for name, width in (("resnet18", 512), ("resnet50", 2048), ("densenet121", 1024)):
        theirs = sum(p.numel() for p in getattr(vision, name)().parameters())
        small, large = ((3, side, side) for side in (32, 64))
        assert count_parameters(build(name, large, 10, 0)) == theirs - 990 * (width + 1)
        stem = 64 * 3 * (7 * 7 - 3 * 3)
        assert count_parameters(build(name, small, 10, 0)) == theirs - 990 * (width + 1) - stem
        assert not any(
            isinstance(m, nn.modules.batchnorm._BatchNorm) for m in build(name, small, 10, 0).modules()
        )


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        (
            "vit-tiny",
            (3, 30, 30),
            "square images, of a multiple of 4 pixels a side at this size; the data has 30x30",
        ),
        ("vit-tiny", (3, 64, 80), "square images, of a multiple of 16 pixels a side at this size"),
        ("vit-b16", (3, 28, 28), "square images, of a multiple of 16 pixels a side at this size"),
        ("densenet121", (3, 7, 8), "takes images of at least 8x8"),
    ],
)
def test_images_that_a_net_cannot_cut_or_halve(name: str, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        build(name, shape, 10, seed=0)


def test_without_torchvision_the_others_are_there(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torchvision'] = None\n"
        "from common.errors import ModelError; from common.models import build\n"
        "build('resnet20', (1, 8, 8), 3, 0)\n"
        "try: build('resnet18', (1, 8, 8), 3, 0)\n"
        "except ModelError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("this model needs torchvision, which cannot be imported: ")


def test_shared_parameters_count_once() -> None:
    layer = nn.Linear(3, 3)
    assert count_parameters(nn.Sequential(layer, layer)) == 12


def lazy(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A layer that learns its size from the first batch."""
    return nn.LazyLinear(classes)


def in_bfloat16(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Parameters that numpy has no type for."""
    return nn.Linear(*input_shape, classes).bfloat16()


@pytest.mark.parametrize(
    ("builder", "sentence"),
    [
        ("lazy", '"tests.common.test_models:lazy" has a lazy layer: "weight" has no shape yet'),
        ("in_bfloat16", r"must have float32 parameters, .*\"weight\" is bfloat16"),
    ],
)
def test_parameters_that_cannot_travel_are_refused(builder: str, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        build(f"tests.common.test_models:{builder}", (4,), 3, seed=0)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (nn.Linear(5, 3), r"the model does not take inputs of \(4,\): RuntimeError: mat1 and mat2"),
        (nn.Linear(4, 2), r"the model must give \(2, 3\) logits for 2 rows; it gave \(2, 2\)"),
        (nn.LSTM(4, 3), r"the model must give \(2, 3\) logits for 2 rows; it gave tuple"),
    ],
)
def test_what_gives_no_logits_is_refused(model: nn.Module, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        require_logits(model, (4,), 3)


def test_looking_for_logits_teaches_the_model_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout())
    model[2].eval()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    require_logits(model, (4,), 3)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert [part.training for part in model.modules()] == [True, True, True, False]


@pytest.mark.parametrize(("name", "shape"), FITTING)
def test_our_models_give_logits(name: str, shape: tuple[int, ...]) -> None:
    require_logits(build(name, shape, 7, seed=0), shape, 7)
