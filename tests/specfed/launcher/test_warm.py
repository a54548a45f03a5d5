"""The warm start of app processes: what goes through it, and what happens without it."""

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.errors import ConfigError
from common.patience import FIRST_PAUSE
from specfed.launcher import warm

# A stand-in for Flower's function that says what it was started with, and how soon it asks again.
COMMAND = """
import json, os, sys
from flwr.supercore.inflatable.inflatable_utils import pull_objects
def main():
    pause = pull_objects.__kwdefaults__["initial_backoff"]
    said = [sys.argv, os.getcwd(), os.environ.get("GREETING"), os.getpid(), pause, sys.path]
    if "--common" in sys.argv:
        import common
    if "--fail" in sys.argv:
        raise RuntimeError("as it was told to")
    print(json.dumps(said), flush=True)
    sys.exit("and leaves" if "--leave" in sys.argv else 3)
"""
SERVE = """
import sys
from pathlib import Path
from specfed.launcher import warm
warm.IMPORTS = ("json",)
warm.COMMANDS = {"flwr-clientapp": "stand_in:main"}
warm.serve(Path(sys.argv[1]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the programs installed."""
    assert warm.install(tmp_path / "warm") == tmp_path / "warm" / "warm.sock"
    return tmp_path / "warm"


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Something that serves the address with the stand-in."""
    (tmp_path / "stand_in.py").write_text(COMMAND)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
    command = [sys.executable, "-c", SERVE, str(folder / "warm.sock")]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}) as process:
        wait_for((folder / "warm.sock").exists)
        yield process
        process.kill()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def call(program: Path, *arguments: str, output: Path, cwd: Path | None = None, **env: str) -> int:
    with output.open("ab") as file:
        return subprocess.run(
            [str(program), *arguments],
            stdout=file,
            stderr=file,
            cwd=cwd,
            env=os.environ | env,
            timeout=60,
            check=False,
        ).returncode


def test_a_start_keeps_arguments_folder_environment_and_output(
    folder: Path, server: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    import json

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    output = tmp_path / "output"
    for times in (1, 2):
        program = folder / "flwr-clientapp"
        assert call(program, "--token", "a b", output=output, cwd=elsewhere, GREETING="hello") == 0
        wait_for(lambda times=times: output.read_text().count("\n") == times)
    first, second = (json.loads(line) for line in output.read_text().splitlines())
    assert first[:3] == second[:3] == [["flwr-clientapp", "--token", "a b"], str(elsewhere), "hello"]
    assert len({first[3], second[3], server.pid}) == 3  # a process for each start
    assert first[4] == FIRST_PAUSE
    assert server.poll() is None


def test_modules_of_the_users_own_are_found(
    folder: Path, server: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    """Python itself reads PYTHONPATH when it starts, and no fork does."""
    import json

    output = tmp_path / "output"
    known = str(tmp_path)  # where the stand-in lies, so that it is there already
    path = os.pathsep.join(["/own/models", "", known, "/own/data"])
    assert call(folder / "flwr-clientapp", output=output, PYTHONPATH=path) == 0
    wait_for(lambda: "\n" in output.read_text())
    found = json.loads(output.read_text())[5]
    assert found[:2] == ["/own/models", "/own/data"] and found.count(known) == 1


def test_an_app_brings_its_own_common(
    folder: Path, server: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    """The site may have another version of it, and this process has loaded that one."""
    app = tmp_path / "app"
    (app / "common").mkdir(parents=True)
    (app / "common" / "__init__.py").write_text("print('of the app', flush=True)\n")
    output = tmp_path / "output"
    assert call(folder / "flwr-clientapp", "--common", output=output, PYTHONPATH=str(app)) == 0
    wait_for(lambda: "\n" in output.read_text())
    assert output.read_text().startswith("of the app\n")


@pytest.mark.parametrize(
    ("word", "says"), [("--fail", "RuntimeError: as it was told to\n"), ("--leave", "and leaves\n")]
)
def test_why_a_start_ends_is_said(
    folder: Path, server: "subprocess.Popen[bytes]", tmp_path: Path, word: str, says: str
) -> None:
    output = tmp_path / "output"
    assert call(folder / "flwr-clientapp", word, output=output) == 0
    wait_for(lambda: output.read_text().endswith(says))


@pytest.mark.parametrize("name", sorted(warm.COMMANDS))
def test_without_a_listener_flowers_own_program_runs(folder: Path, tmp_path: Path, name: str) -> None:
    output = tmp_path / "output"
    assert call(folder / name, "--help", output=output) == 0
    assert f"usage: {name}" in output.read_text()


def test_a_dead_listeners_address_is_the_same_as_none(folder: Path, tmp_path: Path) -> None:
    (folder / "warm.sock").touch()
    assert call(folder / "flwr-clientapp", "--help", output=tmp_path / "output") == 0
    assert "usage: flwr-clientapp" in (tmp_path / "output").read_text()


def test_nobody_else_can_reach_the_address(folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "flwr-clientapp").stat().st_mode) == 0o700


def test_where_it_cannot_work_it_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="is too long a path; set TMPDIR to a shorter one"):
        warm.install(tmp_path / ("x" * 100))
    with pytest.raises(ConfigError, match="a:b cannot be executed"):  # a PATH cannot name it
        warm.install(tmp_path / "a:b")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ConfigError, match="Flower's programs are not in"):
        warm.install(tmp_path / "warm")


def test_a_folder_that_executes_nothing_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "chmod", lambda self, mode: None)  # refused as on a noexec file system
    with pytest.raises(ConfigError, match=r"cannot be executed \(.*Permission denied.*\); set TMPDIR"):
        warm.install(tmp_path / "warm")


def test_programs_work_from_a_python_whose_path_has_a_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "my 'own' env"
    own.mkdir()
    for name in ("python", *warm.COMMANDS):
        (own / name).symlink_to(Path(sys.executable).parent / name)
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    assert warm.install(tmp_path / "warm")
    assert call(tmp_path / "warm" / "flwr-clientapp", "--help", output=tmp_path / "output") == 0
    assert "usage: flwr-clientapp" in (tmp_path / "output").read_text()


def test_a_guarded_path_holds_no_other_program_for_apps(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "flwr-clientapp").symlink_to(tmp_path / "nowhere yet")
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), "/usr/bin"])
    assert warm.without_unguarded(path) == "/usr/bin"
