"""Which device a process computes on, on whatever machine the tests run."""

import pytest
import torch

from common.devices import resolve
from common.errors import ConfigError

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0


def test_auto_takes_a_gpu_where_there_is_one() -> None:
    assert resolve("auto").type == ("cuda" if GPUS else "cpu")


def test_cpu_is_taken_at_its_word() -> None:
    assert resolve("cpu") == torch.device("cpu")


def test_every_gpu_that_is_here_can_be_chosen() -> None:
    chosen = [resolve(f"cuda:{index}") for index in range(GPUS)]
    assert chosen == [torch.device("cuda", index) for index in range(GPUS)]


def test_a_gpu_beyond_the_last_is_refused_with_the_number_of_gpus() -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(f"cuda:{GPUS}")
    expected = f'device "cuda:{GPUS}" is not here: PyTorch sees {GPUS} GPUs on this machine'
    assert str(refused.value) == expected


def test_cuda_without_a_number_is_the_first_gpu() -> None:
    if GPUS:
        assert resolve("cuda").type == "cuda"
    else:
        with pytest.raises(ConfigError, match='device "cuda" is not here'):
            resolve("cuda")
