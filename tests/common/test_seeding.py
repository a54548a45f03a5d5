"""Named random streams: repeatable, apart from each other, and without global state."""

import hashlib
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.seeding import stream, torch_seed

REPO = Path(__file__).parents[2]
NAMES = st.tuples(
    st.integers(0, 2**63 - 1),
    st.text(max_size=3),
    st.lists(st.integers(0, 99) | st.text("0129,\"'[", max_size=3)),
)


def test_the_numbers_follow_from_a_hash_of_the_name() -> None:
    digest = hashlib.sha256(b'[7, "batches", 3, "site-1"]').digest()
    assert torch_seed(7, "batches", 3, "site-1") == int.from_bytes(digest[:8], "big") // 2
    expected = np.random.default_rng(int.from_bytes(digest, "big")).integers(0, 1000, 5)
    assert stream(7, "batches", 3, "site-1").integers(0, 1000, 5).tolist() == expected.tolist()


def test_close_names_are_different_streams() -> None:
    names = [
        (0, "a"),
        (1, "a"),
        (0, "b"),
        (0, "a", 1),
        (0, "a", "1"),
        (0, "a1"),
        (0, "a", 1, 2),
        (0, "a", 12),
        (0, ""),
    ]
    for one, other in combinations(names, 2):
        assert torch_seed(*one) != torch_seed(*other)
        assert stream(*one).random() != stream(*other).random()


@given(NAMES, NAMES)
def test_two_names_share_numbers_only_if_they_are_equal(one, other) -> None:
    seeds = [torch_seed(seed, purpose, *keys) for seed, purpose, keys in (one, other)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert (seeds[0] == seeds[1]) == (one == other)


def test_no_stream_moves_another_or_the_global_one() -> None:
    alone = stream(0, "second").random(4)
    before = np.random.get_state()[1].tolist()
    first = stream(0, "first")
    first.random(100)
    assert stream(0, "second").random(4).tolist() == alone.tolist()
    assert np.random.get_state()[1].tolist() == before


def test_numpy_integers_count_as_integers_and_other_numbers_are_refused() -> None:
    assert torch_seed(np.int64(3), "a", np.int32(4)) == torch_seed(3, "a", 4)
    with pytest.raises(TypeError):
        torch_seed(0, "a", 1.0)


def test_another_process_draws_the_same_without_torch() -> None:
    code = (
        "import sys; from common.seeding import stream; "
        "print(stream(5, 'x', 1).random(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(stream(5, "x", 1).random()), "False"]
