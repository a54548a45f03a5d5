"""Subspaces of tensors: orthonormal, the same in every process, and of the size they promise."""

import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.codec import Bins, Columns, Make, Rows, Shape, bins, codec, coordinates, kept_bins, matrices
from common.config import RunConfig, Value
from common.filters import FftHighPass, lift
from common.params import Params
from common.seeding import stream, uniforms
from common.traffic import traffic

SHAPES: dict[str, Shape] = {"wide": (3, 10, 2), "tall": (12, 3), "odd": (7, 7), "bias": (5,), "one": (1,)}
MAKES: dict[str, Make] = {
    "coordinates": coordinates(0.25, 7, 2),
    "matrices": matrices(0.4, 7, 2),
    "bins": bins(0.25, 7, 2, 0.1),
    "kept bins": kept_bins(0.3, set(SHAPES)),
    "all bins": lambda name, shape: Bins.of(torch.arange(math.prod(shape) // 2 + 1), shape),
}


def some(seed: int, dtype: torch.dtype = torch.float64) -> Params:
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=g, dtype=dtype) for name, shape in SHAPES.items()}


def dense(make: Make, name: str) -> torch.Tensor:
    """P as a matrix, (r, d), column by column."""
    shape = SHAPES[name]
    projector = make(name, shape)
    units = torch.eye(math.prod(shape), dtype=torch.float64)
    return torch.stack([projector.down(e.reshape(shape)).reshape(-1) for e in units], dim=1)


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize("name", SHAPES)
def test_the_rows_of_p_are_orthonormal_and_up_is_its_transpose(kind: str, name: str) -> None:
    p = dense(MAKES[kind], name)
    torch.testing.assert_close(p @ p.T, torch.eye(len(p), dtype=torch.float64), atol=1e-13, rtol=0)
    projector, shape = MAKES[kind](name, SHAPES[name]), SHAPES[name]
    z = torch.randn(len(p), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    form = projector.down(torch.zeros(shape, dtype=torch.float64)).shape
    torch.testing.assert_close(projector.up(z.reshape(form)).reshape(-1), p.T @ z, atol=1e-13, rtol=0)


@pytest.mark.parametrize("kind", MAKES)
def test_projecting_twice_is_projecting_once(kind: str) -> None:
    made = codec(MAKES[kind], SHAPES)
    once = made.project(some(0))
    twice = made.project(once)
    for name, x in once.items():
        torch.testing.assert_close(twice[name], x, atol=1e-13, rtol=0)


def test_sizes() -> None:
    def sizes(kind: str) -> dict[str, int]:
        made = codec(MAKES[kind], SHAPES).encode(some(0))
        return {name: z.numel() for name, z in made.items()}

    assert sizes("coordinates") == {"wide": 15, "tall": 9, "odd": 12, "bias": 1, "one": 1}
    assert sizes("matrices") == {"wide": 20, "tall": 12, "odd": 21, "bias": 5, "one": 1}
    assert sizes("all bins") == {name: math.prod(shape) for name, shape in SHAPES.items()}
    # floor(0.3 * nb) low bins go: 9 of 31, 5 of 19, 7 of 25, 0 of 3, 0 of 1
    assert sizes("kept bins") == {"wide": 60 - 17, "tall": 36 - 9, "odd": 49 - 13, "bias": 5, "one": 1}


def test_the_kept_bins_are_what_the_filter_leaves() -> None:
    made = codec(MAKES["kept bins"], SHAPES)
    filtered = lift(FftHighPass(0.3))(some(3))
    for name, x in made.project(some(3)).items():
        torch.testing.assert_close(x, filtered[name], atol=1e-13, rtol=0)
    for name, x in made.project(filtered).items():
        torch.testing.assert_close(x, filtered[name], atol=1e-13, rtol=0)


def test_spectral_subspaces_have_no_part_that_the_filter_removes() -> None:
    for name, x in codec(bins(0.5, 0, 0, 0.3), SHAPES).project(some(3)).items():
        torch.testing.assert_close(lift(FftHighPass(0.3))({name: x})[name], x, atol=1e-13, rtol=0)


@given(seed=st.integers(0, 99), epoch=st.integers(0, 9))
def test_the_same_seed_and_epoch_give_the_same_subspace(seed: int, epoch: int) -> None:
    makers: list[Callable[[int, int], Make]] = [
        lambda s, e: coordinates(0.3, s, e),
        lambda s, e: matrices(0.3, s, e),
        lambda s, e: bins(0.3, s, e, 0.05),
    ]
    for make in makers:
        z = make(seed, epoch)("odd", (7, 7)).down(some(0)["odd"])
        assert torch.equal(make(seed, epoch)("odd", (7, 7)).down(some(0)["odd"]), z)
        assert not torch.equal(make(seed, epoch + 1)("odd", (7, 7)).down(some(0)["odd"]), z)
        assert not torch.equal(make(seed, epoch)("even", (7, 7)).down(some(0)["odd"]), z)


def test_another_process_makes_the_same_subspace() -> None:
    code = (
        "import torch; from common.codec import matrices; "
        "print(matrices(0.3, 5, 1)('w', (6, 9)).down(torch.arange(54.).reshape(6, 9).double()).tolist())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    x = torch.arange(54.0).reshape(6, 9).double()
    assert told.strip() == str(matrices(0.3, 5, 1)("w", (6, 9)).down(x).tolist())


def test_float32_stays_float32() -> None:
    for make in MAKES.values():
        made = codec(make, SHAPES)
        sent = made.encode(some(0, torch.float32))
        assert {z.dtype for z in (*sent.values(), *made.decode(sent).values())} == {torch.float32}


# Traffic


def config(**values: Value) -> RunConfig:
    return RunConfig.model_validate(values)


def arrays() -> dict[str, np.ndarray]:
    return {name: x.numpy() for name, x in some(4, torch.float32).items()}


def test_by_default_everything_travels_whole() -> None:
    whole = traffic(config(), SHAPES, {"odd"}, 1)
    update = arrays()
    assert whole.encode_update(update) is update and whole.decode_slot(update) is update


def test_kept_bins_leave_slots_whole_and_other_tensors_too() -> None:
    travels = traffic(config(uplink="kept-bins", filter_ratio=0.3), SHAPES, {"odd"}, 1)
    update = arrays()
    assert travels.encode_slot(update) is update
    sent = travels.encode_update(update)
    assert {name: z.size for name, z in sent.items() if z.size != update[name].size} == {"odd": 36}


@pytest.mark.parametrize("projector", ["matrix", "coordinate", "spectral"])
def test_ssf_sends_a_quarter_both_ways_and_changes_its_subspace_when_told(projector: str) -> None:
    shapes: dict[str, Shape] = {"w": (40, 60)}
    run = config(algorithm="ssf", ssf_projector=projector, ssf_refresh=2)
    x = {"w": np.random.default_rng(0).normal(size=(40, 60))}
    sent = [traffic(run, shapes, set(), number).encode_update(x)["w"] for number in (1, 2, 3)]
    assert all(z.size == pytest.approx(600, abs=40) for z in sent)
    assert np.array_equal(sent[0], sent[1]) and not np.array_equal(sent[0], sent[2])
    travels = traffic(run, shapes, set(), 1)
    assert np.array_equal(travels.encode_slot(x)["w"], sent[0])
    np.testing.assert_allclose(travels.as_received(x)["w"], travels.decode_update({"w": sent[0]})["w"])


@pytest.mark.parametrize("name", ["wide", "tall", "odd"])
def test_directions_do_not_hang_on_the_sign_that_a_library_chose(name: str) -> None:
    """Along each drawn direction, less those before it, lies a column with a positive part of it."""
    shape = SHAPES[name]
    rows, rest = shape[0], math.prod(shape[1:])
    short = min(rows, rest)
    size = (short, max(1, round(0.4 * short)))
    uniform = torch.from_numpy(uniforms(stream(7, "matrices", 2, name), math.prod(size)))
    projector = matrices(0.4, 7, 2)(name, shape)
    assert isinstance(projector, Rows | Columns)
    upper = projector.q.T @ torch.special.ndtri(uniform).reshape(size)
    assert (torch.diagonal(upper) > 0).all() and upper.tril(-1).abs().max() < 1e-12
