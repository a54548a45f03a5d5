"""``specfed node``: what ends it, and what does not."""

import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import ConfigError, UnreachableError
from specfed import deployment, dial
from specfed.commands.node import _serve
from specfed.launcher import children, start
from specfed.launcher.children import Process
from specfed.launcher.supervisor import LOST
from specfed.logs import Log
from tests.commands import in_this_process


def test_a_node_that_cannot_enforce_its_list_of_apps_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_start(*_: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(dial, "require_fleet", lambda *_: "")
    monkeypatch.setattr(children, "spawn", no_start)
    monkeypatch.setattr(Path, "chmod", lambda self, mode: None)  # refused as on a noexec file system
    (tmp_path / "policy.toml").write_text(f'apps = ["{"0" * 64}"]\n')
    words = ("node", "--insecure", "--server", "127.0.0.1:1", "--data", "digits", "--name", "site-a")
    with in_this_process(tmp_path, monkeypatch) as command:
        assert command(*words, "--policy", "policy.toml") == ConfigError.exit_code
    said = capsys.readouterr().err
    assert "error: the apps in" in said and "cannot be enforced" in said and "set TMPDIR" in said


def test_a_node_without_the_gpu_that_it_asks_for_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("node", "--insecure", "--server", "127.0.0.1:1", "--data", "digits", "--name", "site-a")
    with in_this_process(tmp_path, monkeypatch) as command:
        assert command(*words, "--device", "cuda:99") == ConfigError.exit_code
    *_, said = capsys.readouterr().err.splitlines()
    assert said.startswith('error: device "cuda:99" is not here: PyTorch sees ')


def test_no_other_process_looks_for_a_device_that_is_always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere")
    for device in ("auto", "cpu"):
        deployment.require_device(device)


@pytest.mark.parametrize("own", [True, False])
def test_a_node_has_a_state_folder_also_without_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """Flower would keep in memory what algorithms remember, of each run that ever was."""
    told: list[str] = []

    def spawned(
        folder: Path, fleet: object, port: int, config: dict[str, str], *_: object, **more: object
    ) -> None:
        told.append(config["state"])
        assert Path(config["state"]).is_relative_to(tmp_path / "mine" if own else folder)
        raise UnreachableError("no node was started")

    monkeypatch.setattr(dial, "require_fleet", lambda *_: "")
    monkeypatch.setattr(start, "spawn_warm", lambda *_, **more: ([], {}))
    monkeypatch.setattr(start, "spawn_node", spawned)
    words = ["node", "--insecure", "--server", "127.0.0.1:1", "--data", "digits", "--name", "site-a"]
    with in_this_process(tmp_path, monkeypatch) as command:
        assert command(*words, *(["--state", "mine"] if own else [])) == 5
    assert len(told) == 1


class Starts:
    """Starts processes that end at once, each with what it has logged and its exit code."""

    def __init__(self, folder: Path, *ends: tuple[str, int]) -> None:
        self.folder, self.ends, self.started = folder, list(ends), 0

    def __call__(self) -> Process:
        text, code = self.ends.pop(0)
        self.started += 1
        log = self.folder / f"{self.started}.log"
        log.write_text(text + "\n", encoding="utf-8")
        return Process(
            "site-1", subprocess.Popen([sys.executable, "-IS", "-c", f"raise SystemExit({code})"]), log
        )


REFUSED = ("[code: 2004] Failed to activate SuperNode.", 1)


def test_a_node_starts_anew_after_an_error_of_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which may hold the former node for present for a while."""
    starts = Starts(tmp_path, ("", LOST), REFUSED, ("", LOST), ("SuperNode terminated gracefully.", 0))
    assert _serve(starts, Log(), pause=0.5) == "forgotten"
    assert starts.started == 4
    told = capsys.readouterr().err.splitlines()
    assert (
        told == ["warning: the server failed in the middle of a call; this node starts anew in 0 seconds"] * 3
    )


def test_a_node_that_is_refused_for_good_ends(tmp_path: Path) -> None:
    assert _serve(Starts(tmp_path, REFUSED), Log(), pause=0.1) == "refused"
    later = Starts(tmp_path, ("", LOST), *[REFUSED] * 50)
    assert _serve(later, Log(), pause=0.1) == "refused" and 2 < later.started < 9


def test_a_node_that_ends_by_itself_says_why(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="site-1 ended by itself: Killed"):
        _serve(Starts(tmp_path, ("Killed", 137)), Log(), pause=0.1)
