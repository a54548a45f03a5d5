"""What files and processes can do to who reads them: a pickle with a side effect, a writer that is killed."""

import signal
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
