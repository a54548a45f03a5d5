"""This machine: versions, disks, device."""

import errno
import importlib.metadata
import os
import platform
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from common.errors import ConfigError, SpecfedError
from specfed.doctor.finding import Finding, guarded, ok, problem, warning

MB = 2**20
TRIAL = MB  # written to see whether a file can be
FEW = 1024 * MB  # room that a few checkpoints of a mid-sized model need

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def versions(description: Path) -> Finding:
    """Whether what is installed fits ``description``, the folder of our ``pyproject.toml``."""
    project = tomllib.loads((description / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [Requirement(text) for text in project["dependencies"]]
    python = platform.python_version()
    wrong = [text for requirement in needed if (text := _misfit(requirement))]
    if python not in SpecifierSet(project["requires-python"]):
        wrong.insert(0, f"Python {python} is running, and {project['requires-python']} is needed")
    if wrong:
        fix = f"install specfed {project['version']} anew in a virtual environment of its own"
        return problem("versions", "; ".join(wrong), fix, SpecfedError)
    shown = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("flwr", "torch"))
    return ok("versions", f"specfed {project['version']}, Python {python}, {shown}, and all others fit")


def _misfit(requirement: Requirement) -> str:
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed, and {requirement.specifier} is needed"
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    return f"{requirement.name} {version} is installed, and {requirement.specifier} is needed"


def disk(what: str, folder: Path, few: int = FEW) -> Finding:
    """Whether a file of a megabyte can be written into ``folder``, or where it would be made. None stays."""
    try:
        there = _nearest(folder.absolute())
    except OSError as error:
        fix = f"let this user into the folders above it ('chmod'), or take another folder for {what}"
        return problem(what, f"{folder} cannot be reached: {error.strerror}", fix, ConfigError)
    if not there.is_dir():
        return problem(
            what,
            f"{there} is a file, no folder",
            f"move it away, or take another folder for {what}",
            ConfigError,
        )
    try:
        with tempfile.TemporaryFile(dir=there, buffering=0) as file:
            _fill(file.fileno(), TRIAL)
    except OSError as error:
        if error.errno in _FULL:
            fix = f"free some room there, lift the quota, or take a folder on another disk for {what}"
            return problem(
                what, f"there is no room for {TRIAL // MB} MB in {there}: {error.strerror}", fix, ConfigError
            )
        fix = f"let this user write there ('chown'), or take another folder for {what}"
        return problem(what, f"{there} cannot be written to: {error.strerror}", fix, ConfigError)
    status = os.statvfs(there)
    free = status.f_bavail * status.f_frsize
    if free < few:
        return warning(what, f"only {free // MB:,} MB are free in {there}", "free some room there")
    return ok(what, f"{there} can be written to, {free // MB:,} MB are free")


def _nearest(path: Path) -> Path:
    """The path, or the nearest one above it that is there. Raises OSError below a closed folder."""
    try:
        path.stat()
        return path
    except (FileNotFoundError, NotADirectoryError):
        return _nearest(path.parent)


def _fill(descriptor: int, size: int) -> None:
    block = bytes(64 * 1024)
    for _ in range(size // len(block)):
        written = 0
        while written < len(block):
            written += os.write(descriptor, block[written:])


def device(wanted: str) -> Finding:
    """Whether the device that a node asks for is there."""

    def check() -> Finding:
        from common.devices import resolve

        return ok("device", f"trains on {resolve(wanted)}")

    fix = (
        "mend the GPU's driver ('nvidia-smi' must list it) or PyTorch's CUDA build, or take device = \"cpu\""
    )
    return guarded("device", fix, check)


def disks(folders: Sequence[tuple[str, Path]]) -> list[Finding]:
    """``disk`` for each of them, and for the folder for scratch files."""
    return [disk(what, folder) for what, folder in (*folders, ("TMPDIR", _scratch_folder()))]


def _scratch_folder() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # none can be written to
        return Path(os.environ.get("TMPDIR", "/tmp"))
