"""The benchmark for GPUs, as far as a CPU can run it."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from common.filters import FilterSettings, build
from common.params import trainable


@pytest.mark.filterwarnings("ignore")  # the profiler's own, about GPUs that are not there
def test_the_same_code_measures_on_a_cpu(tmp_path: Path) -> None:
    assert gpu.main(["--device", "cpu", "--quick", "--folder", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "gpu.json").read_text())
    case = result["resnet20-batch-4"]
    forms = ["fft-naive", "fft-grouped", "fft-shared", "lap-d", "gd"]
    assert list(case["percent-of-a-step"]) == forms and list(case["milliseconds"]) == ["step", *forms]
    assert all(value > 0 for values in case.values() for value in values.values())
    assert case["operations"]["fft-naive"] > case["operations"]["fft-grouped"]


def test_without_the_gpu_one_sentence_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--device", "cuda:99"]) == 2
    printed = capsys.readouterr()
    count = torch.cuda.device_count()
    assert printed.err == f'error: device "cuda:99" is not here: PyTorch sees {count} GPUs on this machine\n'
    assert printed.out == ""


def test_a_wrong_filter_is_noticed() -> None:
    model = gpu.MODELS["resnet20"]()
    g = {name: torch.randn_like(p) for name, p in trainable(model).items()}
    wrong = build(FilterSettings("fft", 0.06), model)
    with pytest.raises(AssertionError):
        gpu.check(model, g, {"fft-wrong": lambda: wrong(g)})
