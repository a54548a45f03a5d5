"""A filter's settings: what is refused, in one sentence, and that the run's configuration agrees."""

import subprocess
import sys
from typing import Any

import pytest

from common.config import RunConfig
from common.errors import ConfigError
from common.filter_settings import FilterSettings
from common.traits import FILTERS


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            {"kind": "lapd"},
            'unknown filter "lapd"; takes fft, lap-d, gd, fft-high, random, l2-rescale, row-mean, none. '
            'Did you mean "lap-d"?',
        ),
        ({"kind": "x"}, f'unknown filter "x"; takes {", ".join(FILTERS)}.'),
        ({"ratio": 1.0}, "a filter's ratio is a share of the bins, 0 <= ratio < 1; got 1.0"),
        ({"ratio": -0.1}, "a filter's ratio is a share of the bins, 0 <= ratio < 1; got -0.1"),
        ({"ratio": float("nan")}, "a filter's ratio is a share of the bins, 0 <= ratio < 1; got nan"),
        ({"kernel": 4}, "a filter's kernel is odd and at least 3, or 0; got 4"),
        ({"kernel": 1}, "a filter's kernel is odd and at least 3, or 0; got 1"),
        ({"kernel": -3}, "a filter's kernel is odd and at least 3, or 0; got -3"),
        ({"sigma": -1.0}, "a filter's sigma is positive, or 0; got -1.0"),
        ({"sigma": float("inf")}, "a filter's sigma is positive, or 0; got inf"),
        (
            {"order": "0023"},
            'a filter\'s order names each axis once, such as "1023", or is "random"; got "0023"',
        ),
        (
            {"order": "123"},
            'a filter\'s order names each axis once, such as "1023", or is "random"; got "123"',
        ),
        (
            {"order": "shuffle"},
            'a filter\'s order names each axis once, such as "1023", or is "random"; got "shuffle"',
        ),
        ({"layers": " "}, "a filter's layers are auto, all or patterns of names; got none"),
    ],
)
def test_the_sentence_for_a_mistake(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        FilterSettings(**wrong)
    assert str(error.value) == sentence


def test_what_is_taken() -> None:
    FilterSettings(ratio=0.0, kernel=3, sigma=0.1, order="random", layers="*.weight,!fc.*")
    FilterSettings(ratio=0.999, kernel=17, order="10")


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("filter-kernel", 4, "a filter's kernel is odd and at least 3, or 0; got 4, in exp.toml"),
        ("filter-layers", "", "a filter's layers are auto, all or patterns of names; got none, in exp.toml"),
        (
            "filter-order",
            "0122",
            'a filter\'s order names each axis once, such as "1023", or is "random"; got "0122", in exp.toml',
        ),
        (
            "filter",
            "lapd",
            "\"filter\" in exp.toml: input should be 'fft', 'lap-d', 'gd', 'fft-high', 'random', 'l2-rescale', "
            "'row-mean' or 'none'; got 'lapd'. Did you mean \"lap-d\"?",
        ),
    ],
)
def test_a_run_is_refused_before_it_starts(key: str, value: str | int, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        RunConfig.read({key: value}, "exp.toml")
    assert str(error.value) == sentence


def test_a_runs_keys_are_the_settings() -> None:
    keys = {"filter": "gd", "filter-ratio": 0.1, "filter-kernel": 9, "filter-sigma": 2.0, "seed": 7}
    keys |= {
        "filter-keep-dc": True,
        "filter-order": "1023",
        "filter-layers": "*.weight",
        "filter-min-ndim": 2,
    }
    got = RunConfig.read(keys, "exp.toml").filter_settings
    assert got == FilterSettings("gd", 0.1, 9, 2.0, True, "1023", "*.weight", 2, 7)
    assert RunConfig().filter_settings == FilterSettings()


def test_a_configuration_is_read_without_pytorch() -> None:
    script = "import sys, common.config; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
