"""Where a run's settings come from, and how a mistake in them is told."""

import json
import re
from pathlib import Path

import pytest

from common.config import RunConfig, Value
from common.errors import ConfigError
from specfed.commands.options import run_folders
from specfed.settings import parse_overrides, read_run


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a=1", 1),
        ("a=0.5", 0.5),
        ("a=true", True),
        ("a=fft", "fft"),
        ('a="x y"', "x y"),
        ("a=my.module:make", "my.module:make"),
        ("a=", ""),
        ("a=b=c", "b=c"),
        ("a=2026-12-01", "2026-12-01"),
        ("a=[1, 2]", "[1, 2]"),
    ],
)
def test_values_on_the_command_line(word: str, value: object) -> None:
    (back,) = parse_overrides([word]).values()
    assert back == value
    assert type(back) is type(value)


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text('rounds = 7\nmodel = "mlp4"\n', encoding="utf-8")
    config = read_run(["rounds=3", str(file), "seed=5"])
    assert (config.rounds, config.model, config.seed) == (3, "mlp4", 5)


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("rounds = 3\n\nlocal-epoch = 2\n", [], 'unknown key "local-epoch" in FILE, line 3. Did you mean'),
        ("rounds = 0\n", [], '"rounds" in FILE, line 1: '),
        ("rounds = 3\n", ["rounds=0"], '"rounds" in the command line: '),
        ("[server]\nport = 1\n", [], '"server" in FILE is a table or list'),
        ("rounds 3\n", [], "experiment file FILE is not TOML"),
        ("rounds = 3\nmicro-batches = 64\n", [], "in FILE, line 2"),  # more than there are rows in a batch
        ("rounds = 3\n", ["micro-batches=64"], "in the command line"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line(
    tmp_path: Path, text: str, words: list[str], message: str
) -> None:
    file = tmp_path / "exp.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(message.replace("FILE", str(file)))):
        read_run([str(file), *words])


def stored(folder: Path, **keys: Value) -> RunConfig:
    """The configuration of a run, which stands in its folder."""
    config = RunConfig.read({key.replace("_", "-"): value for key, value in keys.items()}, "the test")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.as_dict()), encoding="utf-8")
    return config


def test_a_run_to_resume_has_its_own_settings_where_its_folder_is(tmp_path: Path) -> None:
    before = stored(tmp_path / "old", model="mlp4", weighting="cgsv", seed=3, rounds=7)
    defaults: dict[str, Value] = {"run-name": "lab", "eval-data": "digits"}
    more = read_run(["resume=old", "rounds=9", "alignment=raw"], defaults, tmp_path)
    assert more == before.model_copy(update={"resume": "old", "rounds": 9, "alignment": "raw"})
    for words, runs in ((["resume=new"], tmp_path), (["resume=old"], None), ([], tmp_path)):
        assert read_run(words, defaults, runs).eval_data == "digits"


def test_the_configuration_in_a_run_folder_is_an_experiment_file(tmp_path: Path) -> None:
    before = stored(tmp_path / "old", model="mlp4", seed=3)
    file = tmp_path / "old/config.json"
    assert read_run([str(file)], {"eval-data": "digits"}) == before
    assert read_run([str(file), "seed=4"]).seed == 4
    file.write_text('{"sed": 4}')
    with pytest.raises(ConfigError, match=re.escape(f'unknown key "sed" in {file}. Did you mean "seed"?')):
        read_run([str(file)])
    with pytest.raises(ConfigError, match=r'there is no experiment file "nowhere\.json"'):
        read_run(["nowhere.json"])


def test_a_servers_run_folders_are_where_its_file_says(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('insecure = true\nruns = "mine"\n')
    assert run_folders(file) == tmp_path / "mine"
    assert run_folders(None) == Path("runs")


def test_one_experiment_file_is_enough() -> None:
    with pytest.raises(ConfigError, match=r"got a\.toml and b\.toml"):
        read_run(["a.toml", "b.toml"])
