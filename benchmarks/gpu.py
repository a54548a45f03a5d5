"""What the gradient filters cost on a CUDA device: percent of a training step, and operations started.

Needs PyTorch, NumPy and this repository, and takes a few minutes.
``python -m benchmarks.gpu [--repeats N] [--folder DIR]``; ``--device cpu --quick`` tries the script out.
Times are wall time, because what counts is how long the device and its queue are busy.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks import measure
from benchmarks.filters import MODELS, NAIVE, RATIO, tensor_by_tensor
from benchmarks.training import gradients_of, training_step
from common.devices import resolve
from common.errors import SpecfedError
from common.filters import FftHighPass, FilterSettings, build, filtered_names
from common.filters.filter import by_length
from common.params import Params

Work = Callable[[], object]

BATCHES = (50, 500)
CALLS = 5  # in a row between two looks at the clock


def grouped(names: list[str], g: Params) -> list[Tensor]:
    """The FFT filter with tensors of one length stacked, and no lengths shared."""
    return by_length(FftHighPass(RATIO), [g[name].reshape(-1) for name in names])


def captured(work: Work) -> Work:
    """``work`` as a CUDA graph: one launch, on the same memory each time."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # plans and tables must be there before the capture
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = work()  # the memory that replays write to

    def replay() -> object:
        graph.replay()
        return kept

    return replay


def variants_of(model: nn.Module, g: Params, device: torch.device) -> dict[str, Work]:
    """All forms of the filters, by name; the product's own are fft-shared, lap-d and gd."""
    names = filtered_names(FilterSettings("fft", RATIO), model)
    work: dict[str, Work] = {
        "fft-naive": partial(tensor_by_tensor, NAIVE["fft"], g),
        "fft-grouped": partial(grouped, names, g),
        "fft-shared": partial(build(FilterSettings("fft", RATIO), model), g),
        "lap-d": partial(build(FilterSettings("lap-d", RATIO), model), g),
        "gd": partial(build(FilterSettings("gd", RATIO), model), g),
    }
    if device.type == "cuda":
        work |= {f"{name}-graph": captured(work[name]) for name in ("fft-shared", "lap-d", "gd")}
    return work


def check(model: nn.Module, g: Params, work: dict[str, Work]) -> None:
    """AssertionError unless all forms of the FFT filter give the same gradients."""
    expected = tensor_by_tensor(NAIVE["fft"], {name: x.double() for name, x in g.items()})
    for key in [key for key in work if key.startswith("fft")]:
        found = work[key]()
        names = filtered_names(FilterSettings("fft", RATIO), model)
        results = found if isinstance(found, dict) else dict(zip(names, found, strict=True))  # type: ignore[call-overload]
        for name in names:
            scale = max(1e-30, expected[name].abs().max().item())
            got = results[name].double().reshape(expected[name].shape)
            torch.testing.assert_close(got / scale, expected[name] / scale, rtol=0, atol=1e-4)


def seconds_of(work: Work, device: torch.device, calls: int) -> float:
    """Wall seconds of one call, from an idle device to an idle device."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(calls):
        work()
    _wait(device)
    return (time.perf_counter() - start) / calls


def operations_of(work: Work, device: torch.device) -> int:
    """What one call starts: kernels and copies of a GPU, innermost operators on a CPU."""
    gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if gpu else [ProfilerActivity.CPU]
    with profile(activities=activities) as recorded:
        work()
        _wait(device)
    events = recorded.events() or []
    if gpu:
        return sum(event.device_type.name == "CUDA" for event in events)
    return sum(event.name.startswith("aten::") and not event.cpu_children for event in events)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def of_model(name: str, batch: int, device: torch.device, repeats: int, calls: int) -> dict[str, object]:
    """Measure all variants in turn on one model and batch size."""
    model = MODELS[name]().to(device)
    step = training_step(model, batch, device)
    step()
    g = gradients_of(model)
    work = variants_of(model, g, device)
    check(model, g, work)
    everything = {"step": step, **work}
    for call in everything.values():
        call()
    seconds = measure.in_turn(
        {key: partial(seconds_of, call, device, calls) for key, call in everything.items()}, repeats
    )
    return {
        "milliseconds": {key: round(1000 * value, 4) for key, value in seconds.items()},
        "percent-of-a-step": {key: round(100 * seconds[key] / seconds["step"], 2) for key in work},
        "operations": {key: operations_of(call, device) for key, call in everything.items()},
    }


def main(arguments: list[str]) -> int:
    """The exit code: 0, or that of the error of which one sentence was printed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=measure.RESULTS)
    parser.add_argument("--quick", action="store_true", help="ResNet-20 and 4 images, once")
    options = parser.parse_args(arguments)
    try:
        device = resolve(options.device)
    except SpecfedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    cases = [("resnet20", 4)] if options.quick else [(name, batch) for name in MODELS for batch in BATCHES]
    repeats, calls = (1, 1) if options.quick else (options.repeats, CALLS)
    results = {f"{name}-batch-{n}": of_model(name, n, device, repeats, calls) for name, n in cases}
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "none"
    measure.save("gpu", {"device": gpu, "ratio": RATIO, "repeats": repeats, **results}, options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
