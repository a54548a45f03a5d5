"""How far and which way each SAM algorithm goes up: its perturbation by hand."""

import pytest
import torch

from client_app.algorithms.fedfft import fedfft
from client_app.algorithms.fedlesam import BackAlongTheWay
from client_app.algorithms.fedsam import Asam, Sam
from client_app.algorithms.rule import Ascent, LocalContext
from common import filters
from common.params import add, length, scale, sub
from common.slots import DIRECTION, LAST_MODEL
from tests.client_app.algorithms.small import ANCHOR, G, W, assert_equal, ctx, made, some


def test_sam_goes_rho_up_the_gradient_of_all_tensors_together() -> None:
    offset = Sam(0.3).offset(G, W, ctx())
    assert offset is not None
    assert float(length(offset)) == pytest.approx(0.3)
    assert_equal(scale(float(length(G)) / 0.3, offset), G)
    still = Sam(0.3).offset(scale(0.0, G), W, ctx())
    assert still is not None and not any(x.any() for x in still.values())


def test_asam_by_hand() -> None:
    g, w = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, -1.0])}
    offset = Asam(0.5).offset(g, w, LocalContext(w, 0.1))
    assert offset is not None  # w g = (3, -2), norm sqrt 13; w^2 g = (9, 2)
    torch.testing.assert_close(offset["w"], 0.5 * torch.tensor([9.0, 2.0]) / 13**0.5)


FEDFFT_G = torch.tensor([3.0, 1, -2, 4, 0, -1, 2, 5], dtype=torch.float64)
FEDFFT_E = [0.019365, -0.006455, -0.045185, 0.032275, -0.019365, -0.032275, 0.006455, 0.045185]


@pytest.mark.parametrize("renorm", [False, True])
def test_fedfft_takes_the_mean_out_of_the_perturbation(renorm: bool) -> None:
    phi = filters.lift(filters.FftHighPass(0.2))  # one bin of five
    algorithm = made("fedfft", fft=phi, sam_rho=0.1, fft_renorm=renorm)
    g = {"w": FEDFFT_G}
    context = LocalContext(g, 0.1)
    offset = algorithm.ascent.offset(algorithm.sites.ascent(g), g, context)
    assert offset is not None
    e = algorithm.sites.perturbation(offset)["w"]
    factor = 1.195229 if renorm else 1.0
    torch.testing.assert_close(e, factor * torch.tensor(FEDFFT_E, dtype=torch.float64), atol=1e-6, rtol=0)
    assert float(e.norm()) == pytest.approx(0.1 if renorm else 0.083666, abs=1e-6)
    assert algorithm.sites.gradient is not phi


def test_fedlesam_looks_back_along_the_way() -> None:
    last = some(3)
    offset = BackAlongTheWay(0.2).offset({}, W, ctx(memory={LAST_MODEL: last}))
    assert offset is not None
    assert float(length(offset)) == pytest.approx(0.2)
    assert_equal(scale(float(length(sub(last, ANCHOR))) / 0.2, offset), sub(last, ANCHOR))
    assert BackAlongTheWay(0.2).finish(ctx()).memory[LAST_MODEL] is ANCHOR


def test_fedvssam_can_look_along_the_step_before() -> None:
    algorithm = made("fedvssam", vssam_reuse=True, mix=0.5)
    assert algorithm.ascent.blind
    assert algorithm.ascent.offset({}, W, ctx()) is None
    first = algorithm.ascent.offset({}, W, ctx(broadcast={DIRECTION: G}))
    assert first is not None and float(length(first)) == pytest.approx(0.05)
    memory = algorithm.ascent.after_step(None, some(4), ctx())
    after = algorithm.ascent.offset({}, W, ctx(broadcast={DIRECTION: G}, memory=memory))
    assert after is not None
    assert_equal(scale(float(length(some(4))) / 0.05, after), some(4))


def test_fedspeed_blends() -> None:
    ascent = made("fedspeed", speed_share=0.25, speed_normalise=False, sam_rho=0.3).ascent
    offset = ascent.offset(G, W, ctx())
    assert offset is not None
    assert_equal(offset, scale(0.3, G))
    assert_equal(ascent.blend(G, W), add(scale(0.75, G), scale(0.25, W)))


def test_fedsmoo_by_hand() -> None:
    ascent = made("fedsmoo", sam_rho=0.2).ascent
    context = ctx(broadcast={"perturbation": some(1)}, memory={"ascent-dual": some(2)})
    offset = ascent.offset(G, W, context)
    u = sub(sub(G, some(2)), some(1))
    assert offset is not None
    assert_equal(scale(float(length(u)) / 0.2, offset), u)
    after = ascent.after_step(offset, G, context)["ascent-dual"]
    assert_equal(after, sub(add(some(2), offset), some(1)))


@pytest.mark.parametrize("ascent", [Sam(0.05), Asam(0.05)])
def test_fedfft_with_its_length_restored_has_no_low_band_and_the_old_length(ascent: Ascent) -> None:
    """ASAM's offset is not the gradient's direction: a filter before it would leave a low band."""
    draw = torch.Generator().manual_seed(0)
    g, w = ({"w": torch.randn(64, 36, generator=draw, dtype=torch.float64)} for _ in range(2))
    phi, ctx = filters.lift(filters.FftHighPass(0.05)), LocalContext(w, 0.1)
    algorithm = fedfft(ascent, phi, renorm=True)
    plain = ascent.offset(algorithm.sites.ascent(g), w, ctx)
    assert plain is not None
    e = algorithm.sites.perturbation(plain)
    assert float(e["w"].norm()) == pytest.approx(float(plain["w"].norm()))
    assert float((e["w"] - phi(e)["w"]).norm()) < 1e-12
    zero = {"w": torch.zeros(64, 36, dtype=torch.float64)}
    assert torch.equal(algorithm.sites.perturbation(zero)["w"], zero["w"])


def test_a_tiny_gradient_goes_as_far_as_any() -> None:
    offset = Sam(0.3).offset(scale(1e-9, G), W, ctx())
    assert offset is not None and float(length(offset)) == pytest.approx(0.3)
