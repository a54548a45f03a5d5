"""A run's settings from what a person types: an experiment file and ``key=value`` words."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from common.config import Checked, RunConfig, Value
from common.errors import ConfigError
from common.text import kebab

Kind = TypeVar("Kind", bound=Checked)

_PLACE = "<place>"  # stands for the file or command line until it is known which of them is to blame
EXPERIMENT = "experiment file"
_TEXTS = {kebab(name) for name, field in RunConfig.model_fields.items() if isinstance(field.default, str)}


def parse_overrides(words: Iterable[str]) -> dict[str, Value]:
    """``key=value`` words as a mapping; a value is read as TOML, and as plain text if it is not.

    Raises ConfigError for a word without ``=``.
    """
    pairs = [word.partition("=") for word in words]
    for key, sign, _ in pairs:
        if not (key and sign):
            raise ConfigError(f'"{key or sign}" on the command line is neither an option nor KEY=VALUE')
    return {key: _value(key, text) for key, _, text in pairs}


def _value(key: str, text: str) -> Value:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    plain = isinstance(value, str | int | float | bool) and (isinstance(value, str) or key not in _TEXTS)
    return value if plain else text  # run-name=2026 is a name


def read_run(
    words: Sequence[str], defaults: Mapping[str, Value] | None = None, runs: Path | None = None
) -> RunConfig:
    """A run's configuration from an optional file, TOML or a run's ``config.json``, and ``key=value`` words,
    which win.

    ``defaults`` stand in for keys that neither of them sets; for a run to resume whose folder is in ``runs``
    it is its own configuration that does.

    Raises ConfigError that names the file and line, or the command line.
    """
    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        raise ConfigError(f"one experiment file is enough; got {' and '.join(files)}")
    overrides = parse_overrides(word for word in words if "=" in word)
    values, lines = _read_experiment(Path(files[0])) if files else ({}, {})
    places = {key: place for key, place in lines.items() if key not in overrides}
    chosen = {**values, **overrides}
    return checked({**(_stored(chosen.get("resume"), runs) or defaults or {}), **chosen}, places)


def _read_experiment(file: Path) -> tuple[dict[str, Value], dict[str, str]]:
    if file.suffix != ".json" or not file.is_file():
        return read_file(file, EXPERIMENT)
    values = RunConfig.saved(file).as_dict()
    return values, dict.fromkeys(values, str(file))


def _stored(run: Value | None, runs: Path | None) -> dict[str, Value] | None:
    """The configuration of a run whose folder is in ``runs``; None if there is none, or no run is named."""
    file = runs / str(run) / "config.json" if run and runs else None
    return RunConfig.saved(file).as_dict() if file is not None and file.is_file() else None


def checked(values: Mapping[str, Value], places: Mapping[str, str]) -> RunConfig:
    """``RunConfig.read``, whose error names the place of the key: in a file, or the command line."""
    return check(RunConfig, values, places)


def check(kind: type[Kind], values: Mapping[str, Value], places: Mapping[str, str]) -> Kind:
    """``kind.read``, whose error names the place of the key; the command line for one without a place."""
    try:
        return kind.read(values, _PLACE)
    except ConfigError as error:
        text = str(error)
        named = [key for key in places if re.search(rf"(?<![\w-]){re.escape(key)}(?![\w-])", text)]
        first = min(named, key=text.index, default="")
        raise ConfigError(text.replace(_PLACE, places.get(first, "the command line"))) from None


def read_file(file: Path, kind: str) -> tuple[dict[str, Value], dict[str, str]]:
    """The values in a flat TOML file of this kind, such as "server file", and where each key stands in it.

    Raises ConfigError if it cannot be read, is not TOML or not flat.
    """
    try:
        text = file.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except FileNotFoundError:
        hint = "; settings are given as KEY=VALUE" if kind == EXPERIMENT else ""
        raise ConfigError(f'there is no {kind} "{file}"{hint}') from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{kind} {file} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{kind} {file} is not TOML: {error}") from None
    tables = [key for key, value in values.items() if isinstance(value, dict | list)]
    if tables:
        article = "an" if kind == EXPERIMENT else "a"
        raise ConfigError(f'"{tables[0]}" in {file} is a table or list; {article} {kind} has flat keys only')
    lines = {_key(line): number for number, line in enumerate(text.splitlines(), start=1)}
    return values, {key: f"{file}, line {lines[key]}" if key in lines else str(file) for key in values}


def toml(value: Value) -> str:
    """A value as TOML writes it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def _key(line: str) -> str:
    return line.partition("=")[0].strip().strip("\"'")
