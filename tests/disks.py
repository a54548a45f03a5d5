"""Programs that run while a disk is full."""

import os
import subprocess
import sys
from pathlib import Path


def limited(kib: int) -> list[str]:
    """A quota as a shell sets it: no file may be larger."""
    return ["bash", "-c", f'ulimit -f {kib} && exec "$@"', "-"]


def mounted(kib: int) -> list[str]:
    """A disk of its own of this size, in the folder that the last argument names."""
    mount = f'mount -t tmpfs -o size={kib}k none "${{@: -1}}" && exec "$@"'
    return ["unshare", "--map-root-user", "--mount", "bash", "-c", mount, "-"]


def can_mount() -> bool:
    """Whether this machine lets us mount one."""
    command = ["unshare", "--map-root-user", "--mount", "bash", "-c", "mount -t tmpfs none /mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


WAYS = {"a quota": limited, **({"a full disk": mounted} if can_mount() else {})}


def run(
    way: str, kib: int, folder: Path, program: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """A Python program with ``folder``, which is made, as its argument, and only so much room in there."""
    folder.mkdir()
    return subprocess.run(
        [*WAYS[way](kib), sys.executable, "-c", program, str(folder)],
        cwd=folder.parent,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        check=False,
    )
