"""Replies that are announced but never arrive whole: Flower's own wait, bounded."""

import time
from collections.abc import Callable, Iterator

import pytest
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError, pull_objects

from common import patience as module
from common.patience import FIRST_PAUSE, ask_soon, patience


def missing(object_id: str) -> bytes:
    raise ObjectUnavailableError(object_id)


def late(after: float) -> Callable[[str], bytes]:
    """A tensor that arrives ``after`` seconds from now."""
    there = time.monotonic() + after

    def pull(object_id: str) -> bytes:
        return missing(object_id) if time.monotonic() < there else b"whole"

    return pull


@pytest.fixture(autouse=True)
def flowers_own() -> Iterator[None]:
    """Each test finds Flower as it is, and leaves it so."""
    before = dict(pull_objects.__kwdefaults__)
    yield
    pull_objects.__kwdefaults__.update(before)


def test_what_is_late_is_asked_for_soon_again() -> None:
    asked = []

    def third_time(object_id: str) -> bytes:
        asked.append(time.monotonic())
        return missing(object_id) if len(asked) < 3 else b"whole"

    assert ask_soon()
    assert pull_objects(["a"], third_time) == {"a": b"whole"}
    assert pull_objects.__kwdefaults__["initial_backoff"] == FIRST_PAUSE
    first, second = asked[1] - asked[0], asked[2] - asked[1]
    assert 0.8 * FIRST_PAUSE <= first < 1 and 1.6 * FIRST_PAUSE <= second < 1


def test_flower_gives_up_on_what_never_arrives_when_it_is_told_to() -> None:
    started = time.monotonic()
    with patience(0.2), pytest.raises(ObjectPullError):
        pull_objects(["a"], missing)
    assert time.monotonic() - started < 5


def test_what_arrives_in_time_comes_through() -> None:
    with patience(30):
        assert pull_objects.__kwdefaults__["initial_backoff"] == FIRST_PAUSE
        assert pull_objects(["a", "b"], late(0.5)) == {"a": b"whole", "b": b"whole"}


def test_what_is_there_comes_through_when_time_is_up() -> None:
    with patience(-1):
        assert pull_objects(["a"], late(0)) == {"a": b"whole"}


def test_flower_is_as_before_afterwards_and_never_waits_longer() -> None:
    before = dict(pull_objects.__kwdefaults__)
    with pytest.raises(ZeroDivisionError), patience(1.0):
        assert pull_objects.__kwdefaults__["max_time"] == 1.0
        raise ZeroDivisionError
    assert pull_objects.__kwdefaults__ == before
    with patience(1e9):
        assert pull_objects.__kwdefaults__["max_time"] == before["max_time"]


@pytest.mark.parametrize("place", ["flwr.not_there", "flwr.app"])
def test_a_flower_without_that_wait_is_left_alone(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(pull_objects.__kwdefaults__)
    monkeypatch.setattr(module, "PLACE", place)
    with patience(1.0):
        assert not ask_soon()
        assert pull_objects.__kwdefaults__ == before
