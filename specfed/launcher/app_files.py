"""The app that travels to the nodes: what is in it, and its hash."""

import shutil
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from common.errors import ConfigError

_APP_PACKAGES = ("common", "client_app", "strategies", "server_app")


def stage_app(folder: Path) -> Path:
    """Copy what nodes and server run, and nothing else, into ``folder``; the path to hand to ``submit``.

    Raises ConfigError if it cannot be copied.
    """
    try:
        for package in _APP_PACKAGES:
            spec = find_spec(package)
            assert spec is not None and spec.origin is not None, f"package {package} is part of specfed"
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(Path(spec.origin).parent, folder / package, ignore=ignored)
        for name in ("pyproject.toml", "LICENSE"):
            shutil.copy(description() / name, folder / name)
    except shutil.Error as error:  # of all files; one says enough
        raise ConfigError(f"the app cannot be copied: {error.args[0][0][2]}") from None
    except OSError as error:
        raise ConfigError(f"the app cannot be copied: {error}") from None
    return folder


def description() -> Path:
    """The folder with specfed's own ``pyproject.toml``."""
    package = Path(__file__).parents[1]
    installed = package / "app"  # there in an installed package
    return installed if installed.is_dir() else package.parent


def app_hash(folder: Path) -> str:
    """The SHA-256 of the app in ``folder`` as it travels to the nodes."""
    from flwr.cli.build import build_fab_from_disk

    return sha256(build_fab_from_disk(folder)).hexdigest()
