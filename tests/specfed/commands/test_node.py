"""``specfed node``: what ends it before it starts."""

from pathlib import Path

import pytest

from common.errors import ConfigError
from specfed import dial
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
