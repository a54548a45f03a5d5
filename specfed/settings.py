"""A run's settings from what a person types: an experiment file and ``key=value`` words."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from common.config import RunConfig, Value
from common.errors import ConfigError

_PLACE = "<place>"  # stands for the file or command line until it is known which of them is to blame
_TEXTS = {
    name.replace("_", "-") for name, field in RunConfig.model_fields.items() if isinstance(field.default, str)
}


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


def read_run(words: Sequence[str], defaults: Mapping[str, Value] | None = None) -> RunConfig:
    """A run's configuration from an optional TOML file and ``key=value`` words, which win.

    ``defaults`` stand in for keys that neither of them sets.

    Raises ConfigError that names the file and line, or the command line.
    """
    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        raise ConfigError(f"one experiment file is enough; got {' and '.join(files)}")
    overrides = parse_overrides(word for word in words if "=" in word)
    values, lines = _read_file(Path(files[0])) if files else ({}, {})
    places = {key: place for key, place in lines.items() if key not in overrides}
    return checked({**(defaults or {}), **values, **overrides}, places)


def checked(values: Mapping[str, Value], places: Mapping[str, str]) -> RunConfig:
    """``RunConfig.read``, whose error names the place of the key: in a file, or the command line."""
    try:
        return RunConfig.read(values, _PLACE)
    except ConfigError as error:
        key = re.search(r'"([^"]+)"', str(error))
        place = places.get(key[1] if key else "", "the command line")
        raise ConfigError(str(error).replace(_PLACE, place)) from None


def _read_file(file: Path) -> tuple[dict[str, Value], dict[str, str]]:
    """The values in an experiment file, and where each key stands in it."""
    try:
        text = file.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f'there is no experiment file "{file}"; settings are given as KEY=VALUE') from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"experiment file {file} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"experiment file {file} is not TOML: {error}") from None
    tables = [key for key, value in values.items() if isinstance(value, dict | list)]
    if tables:
        raise ConfigError(
            f'"{tables[0]}" in {file} is a table or list; an experiment file has flat keys only'
        )
    lines = {_key(line): number for number, line in enumerate(text.splitlines(), start=1)}
    return values, {key: f"{file}, line {lines[key]}" if key in lines else str(file) for key in values}


def _key(line: str) -> str:
    return line.partition("=")[0].strip().strip("\"'")
