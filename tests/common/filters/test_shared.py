"""The filter for a GPU, which cuts all signals down to shared lengths: the same on a CPU, signal by signal."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from common.filters import FftHighPass, low_bins
from common.filters.shared import Band, groups, without_low_bands
from tests.common.filters.oracles import dense, signal

RESNET20 = [432, *[64] * 12, *[2304] * 6, 4608, *[9216] * 5, 18432, *[36864] * 5, 640]


def bands_of(lengths: list[int], ratio: float) -> tuple[Band, ...]:
    return tuple(Band(n, low_bins(ratio, n)) for n in lengths)


@pytest.mark.parametrize("keep_dc", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_whole_model_is_filtered_as_tensor_by_tensor(keep_dc: bool, dtype: torch.dtype) -> None:
    signals = [signal(n, i).to(dtype) for i, n in enumerate(RESNET20)]
    before = [x.clone() for x in signals]
    out = without_low_bands(signals, bands_of(RESNET20, 0.05), int(keep_dc))
    for x, old, new in zip(signals, before, out, strict=True):
        expected = FftHighPass(0.05, keep_dc)(old.double())
        tolerance = 3e-6 if dtype == torch.float32 else 1e-13
        torch.testing.assert_close(new.double(), expected, atol=tolerance, rtol=0)
        assert torch.equal(x, old) and new.dtype == dtype


def test_a_whole_model_needs_few_transforms() -> None:
    found = groups(bands_of(RESNET20, 0.05))
    assert [short for short, _ in found] == [64, 432, 2304]
    assert sorted(i for _, members in found for i in members) == list(range(len(RESNET20)))


@given(
    lengths=st.lists(
        st.sampled_from([2, 4, 6, 12, 24, 37, 38, 39, 41, 74, 76, 117, 128, 240]), min_size=1, max_size=6
    ),
    percent=st.integers(1, 99),
    seed=st.integers(0, 99),
)
@example(lengths=[38, 76], percent=5, seed=0)
@example(lengths=[12, 240], percent=5, seed=0)
@example(lengths=[12, 240], percent=9, seed=0)
def test_any_mixture_is_the_dense_projection(lengths: list[int], percent: int, seed: int) -> None:
    ratio = percent / 100
    lengths = [n for n in lengths if low_bins(ratio, n)]
    signals = [signal(n, seed + i) for i, n in enumerate(lengths)]
    for x, out in zip(signals, without_low_bands(signals, bands_of(lengths, ratio), 0), strict=True):
        expected = torch.from_numpy(dense(len(x), low_bins(ratio, len(x)))) @ x
        torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)


def test_what_is_not_finite_stays_in_its_own_signal() -> None:
    lengths = [64, 128, 128, 640]
    signals = [signal(n, i) for i, n in enumerate(lengths)]
    signals[1][5] = math.nan
    out = without_low_bands(signals, bands_of(lengths, 0.05), 0)
    assert [bool(x.isfinite().all()) for x in out] == [True, False, True, True]
