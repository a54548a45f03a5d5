"""What files and processes can do to who reads them: pickles with a side effect, broken tensors, killed writers."""

import json
import signal
import struct
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[2]


class Bomb:
    """Unpickled, it would leave a file behind."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.file,)


def last_word_when_killed(code: str, argument: Path, enough: int) -> int:
    """Run Python code that prints whole numbers, ever larger, and kill it after ``enough``: its last one."""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(argument)], cwd=REPO, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        while int(writer.stdout.readline()) < enough:
            pass
        writer.kill()
        last = max([enough, *map(int, writer.stdout.read().split())])
    assert writer.returncode == -signal.SIGKILL
    return last


def safetensors(header: object, body: bytes = b"") -> bytes:
    """A file of that format, right or wrong."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def floats(count: int, kind: str = "F32", end: int = 4) -> dict[str, object]:
    return {"w": {"dtype": kind, "shape": [count], "data_offsets": [0, end]}}


BROKEN_TENSORS = {
    "empty": b"",
    "garbage": b"garbage" * 100,
    "truncated": safetensors(floats(1))[:-3],
    "no data": safetensors(floats(1)),
    "too short": safetensors(floats(9), bytes(4)),
    "a huge header": struct.pack("<Q", 2**62) + b"{}",
    "no tensors": safetensors([1, 2]),
    "overlapping": safetensors({"a": floats(1)["w"], "b": floats(1)["w"]}, bytes(4)),
    "no type of numpy": safetensors(floats(2, "BF16"), bytes(4)),
    "no type of numpy either": safetensors(floats(4, "F8_E4M3"), bytes(4)),
    "unheard-of type": safetensors(floats(1, "PICKLE"), bytes(4)),
}
