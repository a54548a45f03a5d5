"""``specfed`` as a person starts it: commands in the background with what they print, or in this process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from specfed import cli


class Command:
    """One ``specfed`` command in the background, with what it has printed so far.

    ``inside`` are words before it, such as those of a network namespace.
    """

    def __init__(self, folder: Path, *words: str, inside: tuple[str, ...] = ()) -> None:
        self.popen = subprocess.Popen(
            [*inside, sys.executable, "-m", "specfed.cli", *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.output = ""
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        with self.popen.stdout as lines:
            for line in lines:
                self.output += line

    def wait_for(self, text: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.output:
            assert self.popen.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.1)

    def end(self, number: signal.Signals | None = None, seconds: float = 60) -> int:
        if number is not None:
            self.popen.send_signal(number)
        code = self.popen.wait(seconds)
        self._reader.join()
        return code


@contextmanager
def commands(folder: Path) -> Iterator[Callable[..., Command]]:
    """A way to start commands in ``folder``, or ``at`` another one; none of them outlives the exit."""
    started: list[Command] = []

    def command(*words: str, at: Path = folder, inside: tuple[str, ...] = ()) -> Command:
        started.append(Command(at, *words, inside=inside))
        return started[-1]

    try:
        yield command
    finally:
        for one in reversed(started):  # nodes before their server
            if one.popen.poll() is None:
                one.end(signal.SIGTERM)


@contextmanager
def in_this_process(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """A way to run commands in ``folder`` to their exit code, in this process, which has loaded PyTorch once."""
    patch.chdir(folder)
    patch.setattr(sys, "path", list(sys.path))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def command(*words: str) -> int:
        patch.setattr(sys, "argv", ["specfed", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert isinstance(left.value.code, int)
        return left.value.code

    yield command
    for number, handler in before.items():
        signal.signal(number, handler)
