"""Tables as a person sees them."""

import sys

import pytest
from rich.table import Table

from specfed.commands.terminal import print_table


def test_on_a_narrow_terminal_a_key_goes_on_in_the_next_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "SHA256:" + "0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
    table = Table("name", "key", box=None, pad_edge=False)
    table.add_row("site-a", key)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(table)
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert "".join(line.split()[-1] for line in lines) == key
