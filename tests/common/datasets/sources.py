"""Small sources of data, and what loading them comes to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from common.datasets import load
from common.errors import DataError

REPO = Path(__file__).parents[3]


def refusal(spec: object, split: str = "train") -> str:
    with pytest.raises(DataError) as caught:
        load(str(spec), split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def picture(value: object, mode: str = "L", size: tuple[int, int] = (5, 4)) -> Image.Image:
    return Image.new(mode, size, value)


def in_another_process(code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        cwd=REPO,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
