"""The folder to begin with: it trains as it is, and nothing that is there is overwritten."""

import re
import shlex
from pathlib import Path

import pytest

from common.config import RunConfig
from common.errors import ConfigError
from specfed.commands.init import FILES, NEXT, init
from specfed.settings import read_run
from tests.commands import commands


def test_what_is_written_trains_with_the_command_that_is_printed(tmp_path: Path) -> None:
    with commands(tmp_path) as start:
        begun = start("init", "mine-own")
        assert begun.end(seconds=60) == 0, begun.output
        assert begun.output.startswith("mine-own/mine.py and mine-own/experiment.toml. In that folder:")
        (line,) = re.findall(r"specfed (lab run .*)", begun.output)
        run = start(*shlex.split(line), at=tmp_path / "mine-own")
        assert run.end(seconds=240) == 0, run.output
    assert "10/10" in run.output and "SpectralFuse only observed" in run.output
    (accuracy,) = re.findall(r"completed in .* accuracy (\d+\.\d) %", run.output)
    assert float(accuracy) > 85


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_written_trains_in_processes_of_its_own(tmp_path: Path) -> None:
    init(tmp_path)
    with commands(tmp_path) as start:
        words = next(line for line in NEXT.splitlines() if "specfed demo" in line).partition("specfed ")[2]
        demo = start(*shlex.split(words), "--rounds", "1", "tensorboard=false")
        assert demo.end(seconds=240) == 0, demo.output
    assert "1/1" in demo.output and "completed in" in demo.output


def test_its_keys_are_those_of_a_run(tmp_path: Path) -> None:
    init(tmp_path / "a" / "b")
    config = read_run([str(tmp_path / "a" / "b" / "experiment.toml")], {}, tmp_path)
    assert (config.model, config.contribution) == ("mine:net", "observe")
    assert isinstance(config, RunConfig) and all(word in NEXT for word in ("mine:net", "mine:data"))


@pytest.mark.parametrize("name", FILES)
def test_what_is_there_stays(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine already")
    with pytest.raises(ConfigError, match=rf"{name} is there already, and stays as it is"):
        init(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine already"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/sub cannot be written: Not a directory"):
        init(tmp_path / "file" / "sub")
