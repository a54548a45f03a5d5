"""Which way imports point, where Flower is known, and what no source file does."""

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
PACKAGES = ("common", "client_app", "strategies", "server_app", "specfed")
SOURCES = sorted(path for package in PACKAGES for path in (REPO / package).rglob("*.py"))

KNOWS_FLOWER = (
    "common/messages.py",
    "common/patience.py",
    "client_app/app.py",
    "client_app/memory.py",
    "strategies/drop_in.py",
    "strategies/flower.py",
    "strategies/intake.py",
    "server_app/app.py",
    "server_app/roster.py",
    "specfed/launcher/*.py",
    "specfed/local_grid.py",
    "specfed/lab.py",
)
RUNS_WHAT_IT_READS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
BELOW = {
    "common": {"client_app", "strategies", "server_app", "specfed"},
    "client_app": {"strategies", "server_app", "specfed"},
    "strategies": {"client_app", "server_app", "specfed"},
    "server_app": {"client_app", "specfed"},
    "specfed": set(),
}

Check = Callable[[ast.AST], bool]


def imported(tree: ast.AST) -> set[str]:
    """The first parts of all modules that are imported anywhere in a file."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.partition(".")[0])
    return names


def called(name: str) -> Check:
    """A use of the attribute ``name``, such as ``torch.load``, or its import."""
    module, _, attribute = name.partition(".")

    def found(node: ast.AST) -> bool:
        if isinstance(node, ast.ImportFrom):
            return node.module == module and any(alias.name == attribute for alias in node.names)
        return isinstance(node, ast.Attribute) and ast.unparse(node) == name

    return found


def allows_pickle(node: ast.AST) -> bool:
    if not isinstance(node, ast.keyword) or node.arg != "allow_pickle":
        return False
    return not (isinstance(node.value, ast.Constant) and node.value.value is False)


def swallows(node: ast.AST) -> bool:
    """``except`` of everything that does nothing."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    everything = node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
    nothing = all(
        isinstance(x, ast.Pass) or (isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant))
        for x in node.body
    )
    return everything and nothing


def is_bare(node: ast.AST) -> bool:
    return isinstance(node, ast.ExceptHandler) and node.type is None


FORBIDDEN: dict[str, Check] = {
    "torch.load": called("torch.load"),
    "yaml.load": called("yaml.load"),
    "allow_pickle": allows_pickle,
    "an except that swallows everything": swallows,
    "a bare except": is_bare,
}


def parsed(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


def relative(path: Path) -> str:
    return path.relative_to(REPO).as_posix()


def sins(tree: ast.AST) -> Iterator[str]:
    yield from sorted(imported(tree) & RUNS_WHAT_IT_READS)
    for node in ast.walk(tree):
        for name, check in FORBIDDEN.items():
            if check(node):
                yield f"{name} in line {getattr(node, 'lineno', '?')}"


def test_there_are_sources_in_every_package() -> None:
    assert {relative(path).partition("/")[0] for path in SOURCES} == set(PACKAGES)


def test_import_linter_keeps_the_contracts() -> None:
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    run = subprocess.run(
        [sys.executable, "-c", command, "--no-cache"], cwd=REPO, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"[2-9] kept, 0 broken", run.stdout)


def test_imports_point_one_way_even_inside_functions() -> None:
    upwards = {
        relative(path): sorted(imported(parsed(path)) & BELOW[relative(path).partition("/")[0]])
        for path in SOURCES
    }
    assert {path: names for path, names in upwards.items() if names} == {}


def test_flower_is_known_in_few_files() -> None:
    knowing = {relative(path) for path in SOURCES if "flwr" in imported(parsed(path))}
    assert {path for path in knowing if not any(fnmatch(path, pattern) for pattern in KNOWS_FLOWER)} == set()
    assert "common/messages.py" in knowing


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own use
def test_flower_carries_every_source_file_of_the_app(tmp_path: Path) -> None:
    # Flower leaves files out without a word, those named *_test.py among them.
    from flwr.cli.build import build_fab_from_disk

    from specfed.launcher.app_files import stage_app

    fab = tmp_path / "app.fab"
    fab.write_bytes(build_fab_from_disk(stage_app(tmp_path / "app")))
    with zipfile.ZipFile(fab) as archive:
        carried = set(archive.namelist())
    app = [str(p.relative_to(REPO)) for p in SOURCES if p.relative_to(REPO).parts[0] != "specfed"]
    assert sorted(set(app) - carried) == []


def test_no_source_runs_what_it_reads_or_swallows_an_error() -> None:
    found = {relative(path): list(sins(parsed(path))) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "def f():\n    from pickle import loads",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "import yaml\nyaml.load('x')",
        "np.load('x', allow_pickle=True)",
        "np.load('x', allow_pickle=flag)",
        "try:\n    f()\nexcept:\n    pass",
        "try:\n    f()\nexcept Exception:\n    ...",
        "try:\n    f()\nexcept:\n    g()",
    ],
)
def test_a_sin_is_seen(code: str) -> None:
    assert list(sins(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "import json",
        "np.load('x', allow_pickle=False)",
        "yaml.safe_load('x')",
        "model.load('x')",
        "try:\n    f()\nexcept OSError:\n    pass",
        "try:\n    f()\nexcept Exception as e:\n    g(e)",
    ],
)
def test_what_is_no_sin_is_let_be(code: str) -> None:
    assert not list(sins(ast.parse(code)))


def test_imports_are_seen_wherever_they_stand() -> None:
    code = "import flwr.app\ndef f():\n    from torch.nn import Linear\nif TYPE:\n    import a, b.c"
    assert imported(ast.parse(code)) == {"flwr", "torch", "a", "b"}
