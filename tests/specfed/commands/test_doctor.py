"""``specfed doctor``: a line a check, or JSON, and an exit code."""

import json
import re
from pathlib import Path

import pytest

from common.errors import SpecfedError
from specfed.commands import doctor

LINE = re.compile(r"(ok|warning|problem) +\S.{12} \S")


def test_the_command_prints_a_line_a_check(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = made / "site-a" / "node.toml"
    file.write_text(file.read_text().replace("fl.example.org:9092", "127.0.0.1:1"))
    code = doctor.examine("node", file, {"device": "cpu"}, as_json=False)
    *lines, last = capsys.readouterr().out.splitlines()
    assert all(LINE.match(line) for line in lines), lines
    # No data are named, which is found first; the connection is looked at all the same.
    assert code == 2 and last == "node: 2 problems"
    problems = [line for line in lines if line.startswith("problem")]
    assert "no data are named" in problems[0] and "nothing listens at 127.0.0.1:1" in problems[1]
    assert all(" -> " in line for line in problems)


def test_json_for_machines(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor.examine(
        "node", made / "site-a" / "node.toml", {"data": "digits", "server": "127.0.0.1:1"}, as_json=True
    )
    told = json.loads(capsys.readouterr().out)
    assert code == 5 == told["exit-code"] and told["side"] == "node"
    assert told["findings"][0]["state"] == "ok" and told["findings"][0]["exit-code"] == 0
    assert told["findings"][-1]["name"] == "port" and told["findings"][-1]["exit-code"] == 5
    assert set(told["findings"][0]) == {"name", "state", "text", "fix", "exit-code"}


def test_a_mistake_in_the_file_is_a_finding(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = made / "site-a" / "node.toml"
    file.write_text(file.read_text() + "polcy = 1\n")
    assert doctor.examine("node", file, {}, as_json=False) == 2
    out = capsys.readouterr().out
    assert 'Did you mean "policy"?' in out and "'specfed node --help'" in out


def test_whose_file_it_is_is_told_by_its_keys(made: Path, tmp_path: Path) -> None:
    assert doctor.side_of(made / "site-a" / "node.toml") == "node"
    assert doctor.side_of(made / "server" / "server.toml") == "server"
    (tmp_path / "few.toml").write_text('tls-ca = "ca.crt"\n')
    with pytest.raises(SpecfedError, match="'specfed doctor node --config"):
        doctor.side_of(tmp_path / "few.toml")
