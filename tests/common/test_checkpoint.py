"""Checkpoints: byte-equal there and back, whole or not at all, and a sentence for what is neither."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.checkpoint import PARTS, Checkpoint, load_arrays, load_latest, save, save_arrays
from common.errors import DataError
from common.params import Arrays
from tests import disks
from tests.common.hazards import BROKEN_TENSORS, Bomb, floats, last_word_when_killed, safetensors

FILES = [
    "buffers.safetensors",
    "model.safetensors",
    "optimizer.safetensors",
    "personal.safetensors",
    "shared.safetensors",
    "state.json",
]


def arrays() -> Arrays:
    return {
        "fc.weight": np.array([[1e-45, -0.0], [np.inf, 3.5]], dtype=np.float32),
        "double": np.array([np.pi, np.nan]),
        "half": np.array([0.1], dtype=np.float16),
        "norm.num_batches_tracked": np.array(2**53 + 1, dtype=np.int64),
        "scalar": np.array(-0.0, dtype=np.float32),
        "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "empty": np.zeros((0, 3), dtype=np.float32),
        "flags": np.array([True, False]),
    }


def checkpoint(round_: int, **state: Any) -> Checkpoint:
    return Checkpoint(round_, {"w": np.full(3, round_, np.float32)}, {"n": np.array(round_)}, state)


def assert_same(one: Arrays, other: Arrays) -> None:
    assert set(one) == set(other)
    for name, x in one.items():
        assert (x.dtype, x.shape) == (other[name].dtype, other[name].shape), name
        assert x.tobytes() == other[name].tobytes(), name


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# There and back


def test_arrays_come_back_byte_for_byte(tmp_path: Path) -> None:
    save_arrays(tmp_path / "a.safetensors", arrays())
    assert_same(load_arrays(tmp_path / "a.safetensors"), arrays())
    assert names(tmp_path) == ["a.safetensors"]


def test_no_arrays_come_back_as_none(tmp_path: Path) -> None:
    save_arrays(tmp_path / "a.safetensors", {})
    assert load_arrays(tmp_path / "a.safetensors") == {}


def whole() -> Checkpoint:
    """One that has something of everything."""
    state = {"scores": {"site-ä": [0.1, 1e-300, None]}, "round": 3, "empty": {}}
    optimizer = {"variance/w": np.array([1e-300, 2.0])}
    personal = {"site-1/w": np.array([0.5], np.float32)}
    shared = {"control/w": np.array([1 / 3])}
    return Checkpoint(7, arrays(), {"n": np.array(3)}, state, optimizer, personal, shared)


def test_a_checkpoint_comes_back_whole(tmp_path: Path) -> None:
    final = save(tmp_path, whole(), keep=1)
    assert final == tmp_path / "round-0007"
    assert names(final) == FILES
    back = load_latest(tmp_path)
    assert (back.round, back.state) == (7, whole().state)
    for part in PARTS:
        assert_same(getattr(back, part), getattr(whole(), part))


def test_what_there_is_none_of_has_no_file(tmp_path: Path) -> None:
    final = save(tmp_path, Checkpoint(1, {"w": np.ones(2)}, {}, {}), keep=1)
    assert names(final) == ["model.safetensors", "state.json"]
    back = load_latest(tmp_path)
    assert not (back.buffers or back.optimizer or back.personal or back.shared)


def test_what_was_loaded_may_be_written_to(tmp_path: Path) -> None:
    save(tmp_path, checkpoint(1), keep=1)
    load_latest(tmp_path).model["w"] += 1


# Which one, and how many


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_only_the_last_ones_stay(tmp_path: Path, keep: int) -> None:
    for round_ in range(1, 5):
        save(tmp_path, checkpoint(round_), keep)
    assert names(tmp_path) == [f"round-{n:04d}" for n in range(5 - keep, 5)]


def test_rounds_are_numbers_not_words(tmp_path: Path) -> None:
    for round_ in (9998, 9999, 10000):
        save(tmp_path, checkpoint(round_), keep=2)
    assert names(tmp_path) == ["round-10000", "round-9999"]
    assert load_latest(tmp_path).round == 10000


def test_a_round_written_again_replaces_the_first(tmp_path: Path) -> None:
    save(tmp_path, checkpoint(1, first=True), keep=2)
    save(tmp_path, checkpoint(1, first=False), keep=2)
    assert names(tmp_path) == ["round-0001"]
    assert load_latest(tmp_path).state == {"first": False}


# Whole or not at all


def test_a_folder_that_was_not_renamed_does_not_count(tmp_path: Path) -> None:
    save(tmp_path, checkpoint(1), keep=2)
    whole = save(tmp_path, checkpoint(2), keep=2)
    whole.rename(tmp_path / ".round-0002.123")
    assert load_latest(tmp_path).round == 1
    save(tmp_path, checkpoint(2), keep=2)
    assert load_latest(tmp_path).round == 2


def test_other_things_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "round-old").mkdir()
    (tmp_path / "round-0009.bak").write_text("mine")
    save(tmp_path, checkpoint(1), keep=1)
    save(tmp_path, checkpoint(2), keep=1)
    assert names(tmp_path) == ["round-0002", "round-0009.bak", "round-old"]
    assert load_latest(tmp_path).round == 2


def test_leftovers_of_a_killed_process_with_the_same_pid_do_not_mix_in(tmp_path: Path) -> None:
    partial = tmp_path / f".round-0001.{os.getpid()}"
    partial.mkdir()
    (partial / "rubbish").write_text("x")
    assert names(save(tmp_path, whole(), keep=1)) == FILES


def test_what_was_left_half_written_is_gone_with_the_next_one(tmp_path: Path) -> None:
    (tmp_path / ".round-0001.99999").mkdir()  # of a process that was killed
    save(tmp_path, checkpoint(2), keep=2)
    assert [path.name for path in tmp_path.iterdir()] == ["round-0002"]


def test_a_signal_in_the_middle_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, content: bytes) -> None:
        path.write_bytes(content[:3])
        raise KeyboardInterrupt

    monkeypatch.setattr("common.files.write_through", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, checkpoint(1), keep=2)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_server_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    code = (
        "import itertools, pathlib, sys\n"
        "import numpy as np\n"
        "from common.checkpoint import PARTS, Checkpoint, save\n"
        "for n in itertools.count(1):\n"
        "    big = {'w': np.full(200_000, n, np.float32)}\n"
        "    save(pathlib.Path(sys.argv[1]), Checkpoint(n, big, big, {'n': n}), keep=2)\n"
        "    print(n, flush=True)\n"
    )
    told = last_word_when_killed(code, tmp_path, enough=5)
    found = load_latest(tmp_path)
    assert found.round >= told
    assert found.state == {"n": found.round}
    assert (found.model["w"] == found.round).all() and (found.buffers["w"] == found.round).all()


# Neither


def test_the_broken_files_are_broken_in_one_thing_only(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(safetensors(floats(1), bytes(4)))
    assert_same(load_arrays(tmp_path / "a"), {"w": np.zeros(1, np.float32)})


@pytest.mark.parametrize("kind", BROKEN_TENSORS)
def test_a_broken_tensor_file_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    final = save(tmp_path, checkpoint(1), keep=1)
    (final / "model.safetensors").write_bytes(BROKEN_TENSORS[kind])
    with pytest.raises(DataError, match=r"no tensors in .*round-0001/model\.safetensors: ."):
        load_latest(tmp_path)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_under_a_tensor_files_name_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    final = save(tmp_path / "checkpoints", checkpoint(1), keep=1)
    trace = tmp_path / "ran"
    (final / "model.safetensors").write_bytes(pickle.dumps(Bomb(trace), protocol))
    with pytest.raises(DataError, match="no tensors in"):
        load_latest(tmp_path / "checkpoints")
    assert not trace.exists()


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named(tmp_path: Path, file: str) -> None:
    (save(tmp_path, whole(), keep=1) / file).unlink()
    with pytest.raises(DataError, match=file.replace(".", r"\.")):
        load_latest(tmp_path)


@pytest.mark.parametrize(
    "state",
    [
        *(b"", b"{", b"[]", b"3", b"{}", b"\xff", b'{"format": 6}'),
        b'{"format": 6, "round": "x", "parts": ["model"], "state": {}}',
        b'{"format": 6, "round": 1, "parts": 7, "state": {}}',
    ],
)
def test_a_broken_state_is_refused(tmp_path: Path, state: bytes) -> None:
    (save(tmp_path, checkpoint(1), keep=1) / "state.json").write_bytes(state)
    with pytest.raises(DataError, match=r"the checkpoint .*round-0001 cannot be read: ."):
        load_latest(tmp_path)


def test_another_format_is_told(tmp_path: Path) -> None:
    final = save(tmp_path, checkpoint(1), keep=1)
    (final / "state.json").write_text('{"format": 2, "round": 1, "state": {}}')
    with pytest.raises(DataError) as refused:
        load_latest(tmp_path)
    assert str(refused.value) == f"{final} has checkpoint format 2; this version reads 6"


def test_no_checkpoint_is_told(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(DataError) as refused:
            load_latest(folder)
        assert str(refused.value) == f"no checkpoint in {folder}"


@pytest.mark.parametrize("way", disks.WAYS)
def test_a_file_that_does_not_fit_is_as_it_was_before(tmp_path: Path, way: str) -> None:
    program = (
        "import sys; from pathlib import Path; from common.files import write_whole\n"
        "folder = Path(sys.argv[1])\n"
        "write_whole(folder / 'file', b'old')\n"
        "try: write_whole(folder / 'file', bytes(100_000))\n"
        "except OSError: print([(p.name, p.read_bytes()) for p in folder.iterdir()])\n"
    )
    done = disks.run(way, 64, tmp_path / "disk", program)
    assert done.stdout == "[('file', b'old')]\n", done.stderr
