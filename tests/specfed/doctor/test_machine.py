"""Versions, disks and devices of this machine, as they are or as a test has made them."""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.errors import ConfigError
from specfed.doctor import finding, machine
from specfed.launcher import app_files
from tests import disks

NOBODY = 65534


@contextmanager
def closed() -> Iterator[Path]:
    """A folder that the user of this block may not even look into."""
    with without_rights() as folder:
        with as_root():
            os.chmod(folder, 0)
        yield folder


@contextmanager
def as_root() -> Iterator[None]:
    """For a moment with the rights of before, in a block without rights."""
    before = os.geteuid()
    os.seteuid(os.getuid())
    try:
        yield
    finally:
        os.seteuid(before)


@contextmanager
def without_rights() -> Iterator[Path]:
    """A folder that the user of this block may read and not write to."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o555)
        if os.geteuid() == 0:
            os.seteuid(NOBODY)
        try:
            yield Path(name)
        finally:
            os.seteuid(os.getuid())
            os.chmod(name, 0o755)


# --- versions ----------------------------------------------------------------------------------------


def distribution(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_what_is_installed_here_fits() -> None:
    found = machine.versions(app_files.description())
    assert found.state == "ok" and "flwr 1.39" in found.text, found


@pytest.mark.parametrize(
    ("name", "version", "needed"), [("flwr", "1.42.0", "<1.40,>=1.39"), ("torch", "2.1.0", "<3,>=2.11")]
)
def test_a_version_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: str, needed: str
) -> None:
    distribution(tmp_path, name, version)
    monkeypatch.syspath_prepend(tmp_path)
    found = machine.versions(app_files.description())
    assert found.text == f"{name} {version} is installed, and {needed} is needed"
    assert found.error is not None and found.error.exit_code == 1 and "virtual environment" in found.fix


def test_a_build_label_is_no_misfit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path, "torch", "2.12.0+cu128")
    monkeypatch.syspath_prepend(tmp_path)
    assert machine.versions(app_files.description()).state == "ok"


def test_what_is_missing_and_an_old_python(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nversion = "9"\nrequires-python = ">=4"\ndependencies = ["no-such-thing>=1", "numpy"]\n'
    )
    text = machine.versions(tmp_path).text
    assert "no-such-thing is not installed, and >=1 is needed" in text and ">=4 is needed" in text


# --- disks -------------------------------------------------------------------------------------------


def test_a_closed_folder_is_a_problem() -> None:
    with closed() as folder:
        found = machine.disk("state", folder / "to" / "be", few=1)
    assert found.error is ConfigError and "cannot be reached: Permission denied" in found.text and found.fix


def test_a_folder_that_can_be_written_to_stays_as_it_was(tmp_path: Path) -> None:
    found = machine.disk("state", tmp_path / "to" / "be", few=1)
    assert found.state == "ok" and found.text.startswith(f"{tmp_path} can be written to")
    assert list(tmp_path.iterdir()) == []


def test_little_room_is_a_warning(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    found = machine.disk("runs", tmp_path, few=4 * free)
    assert found.state == "warning" and "are free" in found.text


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    for folder in (tmp_path / "state", tmp_path / "state" / "below"):
        found = machine.disk("state", folder)
        assert found.error is not None and "is a file, no folder" in found.text


def test_a_folder_that_others_own() -> None:
    with without_rights() as folder:
        found = machine.disk("state", folder)
    assert found.error is not None and found.error.exit_code == 2
    assert "cannot be written to: Permission denied" in found.text and "chown" in found.fix


PROGRAM = """
import sys
from pathlib import Path
from specfed.doctor import machine
found = machine.disk("state", Path(sys.argv[1]))
print(found.state, found.text, found.fix)
"""


@pytest.mark.parametrize("way", disks.WAYS)
def test_a_full_disk(tmp_path: Path, way: str) -> None:
    done = disks.run(way, 64, tmp_path / "state", PROGRAM)
    assert done.stdout.startswith("problem there is no room for 1 MB in"), done.stdout + done.stderr
    assert "free some room there" in done.stdout


# --- device and time ---------------------------------------------------------------------------------


def test_a_gpu_that_is_not_here() -> None:
    found = machine.device("cuda:99")
    assert found.error is not None and found.error.exit_code == 2
    assert 'device "cuda:99" is not here' in found.text and 'device = "cpu"' in found.fix
    assert machine.device("cpu").text == "trains on cpu"


def test_what_takes_too_long_is_left_to_itself() -> None:
    release = threading.Event()
    with pytest.raises(TimeoutError):
        finding.within(0.05, release.wait)
    release.set()
    assert finding.within(5, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        finding.within(5, lambda: 1 / 0)
    assert finding.within(5, lambda: None) is None
