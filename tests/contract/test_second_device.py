"""Nodes and server on a device that is not the CPU: nothing is left behind, and it is the same training.

They run in a process of their own. PyTorch has such a device for good, and its optimizers then mind it.
"""

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_app.algorithms import ALGORITHMS
from common import models, words
from common.checkpoint import load_arrays
from common.codec import Make, bins, codec, coordinates, matrices
from common.config import Value
from common.filters import FILTERS, FilterSettings, build
from common.gradients import FilteredOptimizer
from common.params import ParamsFilter, trainable
from tests.federation import DATA, Federation, Run

GPU = "cuda"
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ROUNDING = 1e-6  # off the CPU the FFT filter takes another way to the same numbers

OPTIONS: dict[str, dict[str, Value]] = {
    "scaffold with the full gradient": {"algorithm": "scaffold", "scaffold_option": "I"},
    "ASAM": {"algorithm": "fedsam", "sam_adaptive": True},
    "FedCM, warm start": {"algorithm": "fedcm", "warm_start": True},
    "FedFFT, length restored": {"algorithm": "fedfft", "fft_renorm": True},
    "FedVSSAM, one gradient a step": {"algorithm": "fedvssam", "vssam_reuse": True},
    "FedVSSAM, control": {"algorithm": "fedvssam", "vssam_direction": "control"},
    "FedLESAM-S": {"algorithm": "fedlesam", "lesam_rule": "scaffold"},
    "FedLESAM-D": {"algorithm": "fedlesam", "lesam_rule": "feddyn"},
    "SSF by coordinates": {"algorithm": "ssf", "ssf_projector": "coordinate"},
    "SSF by frequencies": {"algorithm": "ssf", "ssf_projector": "spectral"},
    "all sites": {"algorithm": "fedsam", "filter_sites": "gradient,ascent,perturbation,sent"},
    "kept bins": {"uplink": "kept-bins", "filter_sites": "gradient,sent"},
    "elements in a random order": {"filter_order": "random"},
    "GD, wide": {"filter": "gd", "filter_sigma": 60.0},
    "learnt weights": {"weighting": "fedlaw", "proxy_data": DATA},
    "mean kept": {"filter_keep_dc": True},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01, "clip_norm": 0.5, "micro_batches": 3},
    "what updates show": {"diagnostics": "updates", "filter": "none", "diagnostics_probe": 8},
}


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """Where the device is."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        yield process


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_algorithms_train_there_as_on_the_cpu(
    federation: Federation, process: ProcessPoolExecutor, algorithm: str
) -> None:
    assert_same(federation, process, algorithm=algorithm, filter="fft")


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_so_do_their_options(
    federation: Federation, process: ProcessPoolExecutor, options: dict[str, Value]
) -> None:
    assert_same(federation, process, **options)


@pytest.mark.parametrize("filter_", sorted(FILTERS))
def test_so_do_filters_with_batch_norm_and_gradients_looked_at(
    federation: Federation, process: ProcessPoolExecutor, filter_: str
) -> None:
    model = "tests.federation:normed_net"
    assert_same(federation, process, filter=filter_, model=model, diagnostics="gradients")


@pytest.mark.parametrize("filter_", ["fft", "lap-d", "gd"])
@pytest.mark.parametrize("model", ["mlp4", "cnn5", "resnet20"])
def test_so_do_our_models(
    federation: Federation, process: ProcessPoolExecutor, model: str, filter_: str
) -> None:
    nodes = [federation.node(f"site-{i}", range(40 * i, 40 * i + 40), data="digits") for i in (1, 2)]
    config: dict[str, Value] = {"model": model, "filter": filter_, "learning_rate": 0.05, "rounds": 1}
    assert_same(federation, process, nodes, eval_data="digits", **config)


def texts(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Data of the test below."""
    labels = np.arange(60) % 3
    return words.numbered(f"{'abc'[label]} stands in row {row}" for row, label in enumerate(labels)), labels


def test_so_does_our_model_of_texts(federation: Federation, process: ProcessPoolExecutor) -> None:
    data = f"{__name__}:texts"
    nodes = [federation.node(f"site-{i}", range(20 * i, 20 * i + 20), data=data) for i in (1, 2)]
    config: dict[str, Value] = {"model": "dan", "filter": "fft", "learning_rate": 0.05, "rounds": 1}
    assert_same(federation, process, nodes, eval_data=data, **config)


def test_a_filtered_optimizer_works_there(process: ProcessPoolExecutor) -> None:
    process.submit(a_filtered_optimizer).result()


def test_a_step_fetches_nothing_from_the_cpu_twice(process: ProcessPoolExecutor) -> None:
    assert process.submit(copies_in_a_second_step).result() == dict.fromkeys(EACH_STEP, 0)


def test_the_device_is_not_the_cpu(process: ProcessPoolExecutor) -> None:
    process.submit(the_device).result()


@NEEDS_GPU
def test_a_gpu_trains_as_the_cpu_does(federation: Federation) -> None:
    for algorithm in sorted(ALGORITHMS):
        here, there = (
            federation.run(f"{algorithm}-{device}", rounds=2, algorithm=algorithm, device=device)
            for device in ("cpu", GPU)
        )
        assert_close(here, there, atol=1e-4)


@NEEDS_GPU
@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_half_precision_learns_on_a_gpu(federation: Federation, amp: str) -> None:
    run = federation.run(model="tests.federation:normed_net", rounds=6, device=GPU, amp=amp)
    assert run.error is None and {c.status for c in run.clients()} == {"accepted"}
    assert run.end.accuracy is not None and run.end.accuracy > 0.8  # of four classes


def assert_same(
    federation: Federation,
    process: ProcessPoolExecutor,
    nodes: list[dict[str, Value]] | None = None,
    **config: Value,
) -> None:
    """A run there ends with the weights of the same run on the CPU, and with its measures."""
    settings: dict[str, Value] = {"rounds": 2} | config
    here = federation.run("here", nodes, **settings)
    there = process.submit(run_there, federation.tmp_path, nodes, settings).result()
    assert_close(here, there, atol=ROUNDING)


def assert_close(here: Run, there: Run, atol: float) -> None:
    """Both runs were whole, and their last models and measures are the same up to ``atol``."""
    for run in (here, there):
        assert run.error is None
        assert [(c.status, c.reason) for c in run.clients() if c.status != "accepted"] == []
    first, second = final(here), final(there)
    assert first.keys() == second.keys()
    for name, x in first.items():
        np.testing.assert_allclose(second[name], x, rtol=0, atol=atol, err_msg=name)
    assert [r.loss for r in there.rounds] == pytest.approx([r.loss for r in here.rounds], abs=10 * atol)


def final(run: Run) -> dict[str, np.ndarray]:
    """The weights a run ended with, in float64."""
    arrays = load_arrays(run.folder / "model.safetensors")
    return {name: x.astype(np.float64) for name, x in arrays.items()}


# --- in the other process ----------------------------------------------------------------------------


def run_there(folder: Path, nodes: list[dict[str, Value]] | None, config: dict[str, Value]) -> Run:
    """A run whose nodes and server compute on the device."""
    from tests.second_device import DEVICE, Present

    with pytest.MonkeyPatch.context() as patch, Present():
        patch.setattr("common.devices.resolve", lambda device: DEVICE)  # the nodes'
        patch.setattr("server_app.app.resolve", lambda device: DEVICE)
        return Federation(folder, patch).run("there", nodes, **config)


def a_filtered_optimizer() -> None:
    """Momentum and an FFT filter, for three steps."""
    from tests.second_device import DEVICE, Present

    torch.manual_seed(0)
    x, y = torch.randn(8, 6), torch.arange(8) % 4
    here = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 4))
    with Present():
        there = copy.deepcopy(here).to(DEVICE)
        for model, place in ((here, torch.device("cpu")), (there, DEVICE)):
            inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            optimizer = FilteredOptimizer(inner, model, "fft", ratio=0.05)
            for _ in range(3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x.to(place)), y.to(place)).backward()
                optimizer.step()
        for p, q in zip(here.parameters(), there.parameters(), strict=True):
            torch.testing.assert_close(q.cpu(), p, rtol=0, atol=ROUNDING)


def copies_in_a_second_step() -> dict[str, int]:
    """How many tensors go to the device when the same is done once more, by what is done in each step."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from tests.second_device import DEVICE, Present

    class Counting(TorchDispatchMode):
        """Counts what goes from the CPU to the device."""

        copies = 0

        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            to = (kwargs or {}).get("device")
            self.copies += to == DEVICE and getattr(args[0] if args else None, "device", DEVICE) != DEVICE
            return operation(*args, **(kwargs or {}))

    model = resnet()
    g = {name: torch.randn_like(p) for name, p in trainable(model).items()}
    found = {}
    with Present():
        there = {name: x.to(DEVICE) for name, x in g.items()}
        for name, make in EACH_STEP.items():
            work = make()
            work(there)
            with Counting() as counting:
                work(there)
            found[name] = counting.copies
        with Counting() as counting:
            torch.ones(3).to(DEVICE)
        assert counting.copies == 1
    return found


def resnet() -> nn.Module:
    return models.build("resnet20", (3, 8, 8), 4, 0)


def subspace(make: Make) -> ParamsFilter:
    from tests.second_device import DEVICE

    shapes = {name: tuple(p.shape) for name, p in trainable(resnet()).items()}
    return codec(make, shapes).on(DEVICE).project


EACH_STEP: dict[str, Callable[[], ParamsFilter]] = {
    **{kind: partial(lambda kind: build(FilterSettings(kind), resnet()), kind) for kind in sorted(FILTERS)},
    "random order": lambda: build(FilterSettings("fft", order="random"), resnet()),
    "SSF by matrices": lambda: subspace(matrices(0.25, 0, 0)),
    "SSF by coordinates": lambda: subspace(coordinates(0.25, 0, 0)),
    "SSF by frequencies": lambda: subspace(bins(0.25, 0, 0, 0.05)),
}


def the_device() -> None:
    """It is as strict as CUDA."""
    from tests.second_device import DEVICE, Present

    with Present():
        x = torch.ones(3, device=DEVICE)
        assert (x.device, torch.zeros_like(x).device, x.cpu().device.type) == (DEVICE, DEVICE, "cpu")
        assert (2 * x).tolist() == [2.0, 2.0, 2.0] and (x + torch.tensor(1.0)).tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(RuntimeError, match="add: expected all tensors to be on the same device"):
            x + torch.ones(3)
        with pytest.raises(RuntimeError, match="add_: expected all tensors to be on the same device"):
            torch.tensor(1.0).add_(x.sum())
        with pytest.raises(RuntimeError, match="numpy"):
            x.numpy()
