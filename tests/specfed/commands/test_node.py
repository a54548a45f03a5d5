"""``specfed node``: what ends it before it starts."""

import sys
from pathlib import Path

import pytest

from common.errors import ConfigError
from specfed import deployment, dial
from specfed.launcher import children
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
