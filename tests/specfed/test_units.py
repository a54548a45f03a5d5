"""The systemd units in the operators' pages: what a server or node needs under them, as the pages set it up."""

import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from textwrap import dedent

import pytest

from specfed.deployment import NodeSettings, ServerSettings

DOCS = Path(__file__).parents[2] / "docs"
PAGES = pytest.mark.parametrize("page", ["coordinator.md", "site-operator.md"])


def blocks(page: str, language: str) -> list[str]:
    """The page's blocks in that language, without the indentation of a list."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [
        dedent(block)
        for block in re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    ]


def unit_of(page: str) -> str:
    (unit,) = [block for block in blocks(page, "ini") if "[Unit]" in block]
    return unit


def settings_of(unit: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)


@PAGES
def test_a_unit_leaves_one_folder_to_write_to_and_knows_how_a_stop_ends(page: str) -> None:
    settings = settings_of(unit_of(page))
    assert settings["ProtectSystem"] == "strict" and "ReadWritePaths" not in settings
    assert settings["StateDirectory"] == "specfed"  # made by systemd: a path that is not there starts nothing
    assert settings["PrivateTmp"] == settings["ProtectHome"] == settings["NoNewPrivileges"] == "yes"
    assert settings["SuccessExitStatus"] == "143"  # SIGTERM's
    assert settings["Restart"] == "on-failure" and int(settings["RestartSec"]) >= 30
    assert settings["CapabilityBoundingSet"] == ""
    assert "PrivateDevices" not in settings and "MemoryDenyWriteExecute" not in settings  # GPUs, PyTorch


@PAGES
def test_a_unit_finds_what_the_page_has_made(page: str) -> None:
    settings, commands = settings_of(unit_of(page)), "\n".join(blocks(page, "bash")).splitlines()
    home = f"/var/lib/{settings['StateDirectory']}"
    (user,) = [line for line in commands if line.startswith("useradd")]
    assert user.split()[-1] == settings["User"] and f"--home-dir {home} " in user  # caches go there
    program, side, option, file = settings["ExecStart"].split()
    assert f"python3 -m venv {PurePosixPath(program).parents[1]}" in commands
    assert any(line.startswith(f"{PurePosixPath(program).parent}/pip install ") for line in commands)
    kind = {"server": ServerSettings, "node": NodeSettings}[side]
    assert option == "--config" and file == f"{side}.toml" and "state" in kind.model_fields
    folder = settings["WorkingDirectory"]
    assert any(re.fullmatch(rf"cp \S+/\* {folder}/", line) for line in commands)
    assert any(re.fullmatch(rf"chown {settings['User']} {folder}/\S+\.key", line) for line in commands)
    assert f'state = "{home}/state"' in (DOCS / page).read_text(encoding="utf-8")


def test_both_units_are_closed_alike() -> None:
    server, node = (settings_of(unit_of(page)) for page in ("coordinator.md", "site-operator.md"))
    own = {"Description", "ExecStart"}
    assert server.keys() == node.keys()
    assert {key for key in server if server[key] != node[key]} == own


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd's tools")
@PAGES
def test_systemd_understands_each_line(page: str, tmp_path: Path) -> None:
    file = tmp_path / "specfed-check.service"
    file.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", unit_of(page)), encoding="utf-8")
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
    )
    assert [line for line in said.stderr.splitlines() if file.name in line] == []
