"""Apps that a site has not listed are not even unpacked."""

import hashlib
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specfed.launcher import app_files, guard, warm

REPO = Path(__file__).parents[3]


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What Flower's own step has unpacked."""
    unpacked: list[bytes] = []
    module: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    monkeypatch.setattr(module, "install_from_fab", lambda content, **more: unpacked.append(content))
    return unpacked


def install(content: bytes) -> None:
    module: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    module.install_from_fab(content, skip_prompt=True)


def test_a_listed_app_is_unpacked_and_another_is_named(
    flower: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = hashlib.sha256(b"ours").hexdigest()
    monkeypatch.setenv(guard.APPS, f"{'0' * 64},{listed}")
    guard.guard()
    install(b"ours")
    other = hashlib.sha256(b"theirs").hexdigest()
    with pytest.raises(guard.NotListed, match=f"lists no app with the SHA-256 {other}"):
        install(b"theirs")
    assert flower == [b"ours"]


def test_without_a_list_any_app_is_unpacked(flower: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(guard.APPS, raising=False)
    guard.guard()
    install(b"theirs")
    assert flower == [b"theirs"]


def test_flowers_own_program_finds_the_apps_common_too(tmp_path: Path) -> None:
    """As where the warm start is gone: the guard has loaded the site's own by then."""
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").write_text("found = 'of the app'\n")
    code = """
import sys
from specfed.launcher import guard, warm
def program():
    sys.path.insert(0, sys.argv[1])
    import common
    print(common.found)
warm.flower_function = lambda name: program
sys.argv = ["guard", "flwr-clientapp", sys.argv[1]]
guard.main()
"""
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, cwd=REPO
    )
    assert said.stdout == "of the app\n"


# Flower's own use of a library.
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_the_hash_is_that_of_what_travels(tmp_path: Path) -> None:
    from flwr.cli.build import build_fab_from_disk

    app = app_files.stage_app(tmp_path / "app")
    once = app_files.app_hash(app)
    assert once == hashlib.sha256(build_fab_from_disk(app)).hexdigest()
    (app / "client_app" / "app.py").write_text("# another app\n")
    assert app_files.app_hash(app) != once


def test_where_no_warm_start_listens_the_guard_is_kept(tmp_path: Path) -> None:
    assert warm.install(tmp_path / "warm")
    environment = {**os.environ, guard.APPS: "0" * 64, "PYTHONPATH": str(Path(__file__).parents[3])}
    started = subprocess.run(
        [str(tmp_path / "warm" / "flwr-clientapp"), "--help"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode == 0 and "usage: flwr-clientapp" in started.stdout
    assert "specfed.launcher.guard" in (tmp_path / "warm" / "flwr-clientapp").read_text()
