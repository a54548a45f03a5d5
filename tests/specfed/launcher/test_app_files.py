"""The app that travels to the nodes."""

from pathlib import Path

import pytest

from common.errors import ConfigError
from specfed.launcher import app_files


@pytest.mark.parametrize("name", ["common", "LICENSE"])
def test_what_cannot_be_copied_is_told_in_a_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / name).mkdir()  # a folder where a file belongs, or where one is to be made
    with pytest.raises(ConfigError, match="the app cannot be copied: "):
        app_files.stage_app(tmp_path)


def test_the_staged_app_is_the_four_packages_and_nothing_else(tmp_path: Path) -> None:
    staged = app_files.stage_app(tmp_path / "app")
    assert {path.name for path in staged.iterdir()} == {
        "common",
        "client_app",
        "strategies",
        "server_app",
        "pyproject.toml",
        "LICENSE",
    }
    assert not [path for path in staged.rglob("*") if "__pycache__" in path.parts]


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_flower_makes_a_bundle_of_the_staged_app(tmp_path: Path) -> None:
    import io
    import zipfile

    from flwr.cli.build import build_fab_from_disk

    fab = build_fab_from_disk(app_files.stage_app(tmp_path / "app"))
    names = set(zipfile.ZipFile(io.BytesIO(fab)).namelist())
    assert {"common/config.py", "client_app/app.py", "server_app/app.py", "strategies/flower.py"} <= names
    assert not [name for name in names if name.startswith(("specfed/", "tests/"))]
