"""Commands before a command, under which a disk is full."""

import subprocess


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
