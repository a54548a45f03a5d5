"""``specfed init``: a folder to begin with."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from common.errors import ConfigError
from specfed.commands.terminal import near

FILES = ("mine.py", "experiment.toml")
NEXT = """in one process        specfed lab run experiment.toml --data mine:data --nodes 3
in real processes     specfed demo --data mine:data --model mine:net --nodes 3
at a site             specfed node --config node.toml --data mine:data
on the server         specfed run --config server.toml experiment.toml

A site and the server each need mine.py where they are started."""


def init(folder: Annotated[Path, typer.Argument(help="Folder to write them to.")]) -> None:
    """Write a model, data and an experiment of your own to begin with: two short functions and a few keys."""
    from common.files import write_whole

    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise ConfigError(f"{folder / there[0]} is there already, and stays as it is; take another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            write_whole(folder / name, (files("specfed.template") / name).read_bytes())
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from None
    written = " and ".join(near((folder / name).resolve()) for name in FILES)
    print(f"{written}. In that folder:\n\n{NEXT}")
