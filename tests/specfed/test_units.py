"""The systemd units in the operators' pages: what a server or node needs under them."""

import re
from pathlib import Path
from textwrap import dedent

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["coordinator.md", "site-operator.md"])
def test_a_unit_leaves_a_folder_for_scratch_files_and_knows_how_a_stop_ends(page: str) -> None:
    (unit,) = re.findall(r"( *)```ini\n(.*?)\n *```", (DOCS / page).read_text(), re.DOTALL)
    settings = dict(line.split("=", 1) for line in dedent(unit[1]).splitlines() if "=" in line)
    assert settings["ProtectSystem"] == "strict"
    assert settings["PrivateTmp"] == settings["ProtectHome"] == settings["NoNewPrivileges"] == "yes"
    assert settings["SuccessExitStatus"] == "143"  # SIGTERM's
    assert settings["ReadWritePaths"] == "/var/lib/specfed"
