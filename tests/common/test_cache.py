"""The cache of decoded arrays: made once, never half there, never in the way."""

import json
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from common import cache

REPO = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECFED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Maker:
    """Makes arrays, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, np.ndarray]:
        self.calls += 1
        return {"x": np.arange(6, dtype=np.uint8).reshape(2, 3), "classes": np.array(7)}


def test_arrays_are_made_once_and_come_back_equal() -> None:
    make = Maker()
    for arrays in (cache.fetch(["a"], [], make), cache.fetch(["a"], [], make)):
        assert arrays["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert (arrays["x"].dtype, int(arrays["classes"])) == (np.uint8, 7)
        assert not arrays["x"].flags.writeable
    assert make.calls == 1


def test_another_name_is_another_entry() -> None:
    make = Maker()
    for name in (["a"], ["b"], ["a", "b"], ["ab"]):
        cache.fetch(name, [], make)
    assert make.calls == 4


def test_a_changed_file_makes_a_new_entry(tmp_path: Path) -> None:
    make, file = Maker(), tmp_path / "file"
    file.write_text("one")
    cache.fetch(["a"], [file], make)
    cache.fetch(["a"], [file], make)
    assert make.calls == 1
    file.write_text("three")  # another size
    cache.fetch(["a"], [file], make)
    assert make.calls == 2
    os.utime(file, ns=(1, 1))  # another time
    cache.fetch(["a"], [file], make)
    assert make.calls == 3
    cache.fetch(["a"], [], make)
    assert make.calls == 4


def test_a_process_that_comes_second_takes_the_first_ones_arrays(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make = Maker()

    def overtaken() -> dict[str, np.ndarray]:
        cache.fetch(["a"], [], make)  # another process, while this one decodes
        return make()

    assert cache.fetch(["a"], [], overtaken)["x"].shape == (2, 3)
    assert make.calls == 2
    assert caplog.text == ""
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == []
    assert len(list(root.iterdir())) == 1


def test_processes_at_the_same_time_all_get_the_arrays(root: Path) -> None:
    code = (
        "import numpy as np; from common import cache; "
        "print(int(cache.fetch(['a'], [], lambda: {'x': np.ones(10**6)})['x'].sum()))"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], cwd=REPO, stdout=subprocess.PIPE) for _ in range(3)
    ]
    assert [process.communicate()[0].strip() for process in running] == [b"1000000"] * 3
    assert len(list(root.iterdir())) == 1


@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "no meta", "bad meta", "other meta"])
def test_a_damaged_entry_is_made_anew(root: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    make = Maker()
    cache.fetch(["a"], [], make)
    (entry,) = root.iterdir()
    change = {
        "cut": lambda: (entry / "x.npy").write_bytes((entry / "x.npy").read_bytes()[:-3]),
        "empty": lambda: (entry / "x.npy").write_bytes(b""),
        "missing": lambda: (entry / "x.npy").unlink(),
        "no meta": lambda: (entry / "meta.json").unlink(),
        "bad meta": lambda: (entry / "meta.json").write_text("{"),
        "other meta": lambda: (entry / "meta.json").write_text("[]"),
    }
    change[damage]()
    assert cache.fetch(["a"], [], make)["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert "is damaged and is made anew" in caplog.text
    cache.fetch(["a"], [], make)
    assert make.calls == 2


def test_an_entry_never_runs_code(root: Path) -> None:
    make = Maker()
    cache.fetch(["a"], [], make)
    (entry,) = root.iterdir()
    np.save(entry / "x.npy", np.array([print], dtype=object), allow_pickle=True)
    assert cache.fetch(["a"], [], make)["x"].dtype == np.uint8
    assert make.calls == 2


def test_a_cache_that_cannot_be_written_is_only_a_warning(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root.write_text("a file where the folder should be")
    make = Maker()
    with caplog.at_level(logging.WARNING):
        assert cache.fetch(["a", "train"], [], make)["x"].shape == (2, 3)
        assert cache.fetch(["a", "train"], [], make)["x"].shape == (2, 3)
    assert make.calls == 2
    assert "cannot write to the cache" in caplog.text


def test_entries_are_private_and_say_what_they_are(root: Path) -> None:
    cache.fetch(["a", "train"], [], Maker())
    (entry,) = root.iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == stat.S_IMODE(root.stat().st_mode) == 0o700
    meta = json.loads((entry / "meta.json").read_text())
    assert meta == {"format": 3, "name": ["a", "train"], "arrays": ["x", "classes"]}


def test_without_the_variable_it_lies_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPECFED_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    cache.fetch(["a"], [], Maker())
    assert len(list((tmp_path / ".cache" / "specfed").iterdir())) == 1


def test_a_new_entry_takes_the_place_of_the_former_under_its_name(root: Path, tmp_path: Path) -> None:
    file, make = tmp_path / "file", Maker()
    file.write_text("one")
    former = cache.fetch(["a", "train"], [file], make)
    kept = cache.fetch(["a", "test"], [file], make)
    file.write_text("three")
    cache.fetch(["a", "train"], [file], make)
    assert sorted(json.loads(meta.read_text())["name"] for meta in root.glob("*/meta.json")) == [
        ["a", "test"],
        ["a", "train"],
    ]
    assert former["x"].tolist() == kept["x"].tolist() == [[0, 1, 2], [3, 4, 5]]  # mapped, and still there


def test_what_a_dead_process_left_goes_after_a_day(root: Path) -> None:
    cache.fetch(["a"], [], Maker())
    old, young = root / ".new-old", root / ".new-young"
    for folder in (old, young):
        folder.mkdir()
        (folder / "x.npy").write_bytes(b"rows")
    os.utime(old, (0, 0))
    cache.fetch(["b"], [], Maker())
    assert young.exists() and not old.exists()
