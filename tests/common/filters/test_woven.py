"""The filter of a model's middling tensors at once on a CPU: the same as signal by signal."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.filters import FftHighPass, low_bins
from common.filters.shared import Band, groups
from common.filters.woven import middling, without_woven_bands
from tests.common.filters.oracles import by_masking, signal

RESNET20 = [2304, 36864, 432, *[64] * 12, *[2304] * 5, 4608, *[9216] * 5, 18432, *[36864] * 4, 640, 73728]
LENGTHS = [2048, 2304, 2309, 4096, 4608, 4618, 6912, 8192, 9216, 12288, 40960]


def bands_of(lengths: list[int], ratio: float) -> tuple[Band, ...]:
    return tuple(Band(n, low_bins(ratio, n)) for n in lengths)


@pytest.mark.parametrize("keep_dc", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_whole_model_is_filtered_as_tensor_by_tensor(keep_dc: bool, dtype: torch.dtype) -> None:
    signals = [signal(n, i).to(dtype) + 1 for i, n in enumerate(RESNET20)]
    before = [x.clone() for x in signals]
    for x, old, new in zip(signals, before, FftHighPass(0.05, keep_dc).together(signals), strict=True):
        expected = by_masking(old, low_bins(0.05, len(old)), first=int(keep_dc))
        tolerance = 5e-6 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(new.double(), expected, atol=tolerance, rtol=0)
        assert torch.equal(x, old) and new.dtype == dtype and new.shape == old.shape


def test_a_whole_model_needs_one_transform() -> None:
    chosen, others = middling(bands_of(RESNET20, 0.05))
    assert sorted(chosen + others) == list(range(len(RESNET20)))
    assert {RESNET20[i] for i in others} == {64, 432, 640, 73728}
    bands = tuple(bands_of(RESNET20, 0.05)[i] for i in chosen)
    ((short, members),) = groups(bands, least=2048)
    assert short == 2304 and sorted(members) == list(range(len(chosen)))


def test_the_shortest_signal_is_cut_as_well() -> None:
    assert groups(bands_of([36864, 73728], 0.05), least=2048) == ((2048, (0,)), (4096, (1,)))
    assert groups(bands_of([36864], 0.3), least=2048) == ((12288, (0,)),)
    assert groups(bands_of([4099, 5], 0.5), least=2048) == ((5, (1,)), (4099, (0,)))


@given(
    lengths=st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=5),
    percent=st.integers(1, 99),
    first=st.integers(0, 1),
    seed=st.integers(0, 99),
)
@example(lengths=[2304, 4608, 2304], percent=50, first=0, seed=0)
@example(lengths=[4608, 9216, 2304], percent=24, first=1, seed=0)
@settings(max_examples=60)
def test_any_mixture_loses_its_low_bins(lengths: list[int], percent: int, first: int, seed: int) -> None:
    ratio = percent / 100
    signals = [signal(n, seed + i) for i, n in enumerate(lengths)]
    for x, out in zip(signals, without_woven_bands(signals, bands_of(lengths, ratio), first), strict=True):
        expected = by_masking(x, low_bins(ratio, len(x)), first)
        torch.testing.assert_close(out, expected, atol=1e-11, rtol=0)


def test_what_is_not_finite_stays_in_its_own_signal() -> None:
    lengths = [2304, 4608, 4608, 9216, 2304]
    signals = [signal(n, i) for i, n in enumerate(lengths)]
    signals[2][5] = math.nan
    out = without_woven_bands(signals, bands_of(lengths, 0.05), 0)
    assert [bool(x.isfinite().all()) for x in out] == [True, True, False, True, True]


def test_a_signal_may_lie_apart_in_memory() -> None:
    wide = signal(2 * 4608, 0).view(4608, 2)
    (out,) = without_woven_bands([wide[:, 1]], bands_of([4608], 0.05), 0)
    torch.testing.assert_close(out, by_masking(wide[:, 1], 115), atol=1e-12, rtol=0)
