"""A user's own function by name: found, called, and its failures in one sentence."""

from pathlib import Path

import pytest

from common.errors import DataError, ModelError
from common.plugins import call, is_plugin
from tests.modules import importable

SOURCE = """
import math
ANSWER = 42
def total(a, b): return a + b
def breaks(a): raise RuntimeError("first line\\nsecond line")
def silent(a): raise KeyError
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    needy = "import a_library_that_is_not_there"
    with importable(tmp_path, monkeypatch, own_things=SOURCE, own_needy=needy, own_broken="1 / 0"):
        yield


@pytest.mark.parametrize("spec", ["module:function", "a.b.c:d", "_m:_f2"])
def test_what_names_a_function(spec: str) -> None:
    assert is_plugin(spec)


@pytest.mark.parametrize("spec", ["digits", "a:", ":b", "a/b:c", "C:\\data", "a:b:c", "a: b", "./x.npz", ""])
def test_what_does_not(spec: str) -> None:
    assert not is_plugin(spec)


def test_the_function_gets_the_arguments(own_module: None) -> None:
    assert call("own_things:total", (2, 3), DataError) == 5


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("own_thing_s:total", '"own_thing_s:total": there is no module "own_thing_s" on the Python path'),
        ("own_pkg.sub:f", '"own_pkg.sub:f": there is no module "own_pkg" on the Python path'),
        (
            "own_needy:f",
            '"own_needy:f": module "own_needy" needs "a_library_that_is_not_there", which is not installed',
        ),
        (
            "own_broken:f",
            '"own_broken:f": importing "own_broken" failed with ZeroDivisionError: division by zero',
        ),
        (
            "own_things:totl",
            '"own_things:totl": module "own_things" has no function "totl". Did you mean "total"?',
        ),
        ("own_things:ANSWER", '"own_things:ANSWER": module "own_things" has no function "ANSWER".'),
        ("own_things:breaks", '"own_things:breaks" failed with RuntimeError: first line'),
        ("own_things:silent", '"own_things:silent" failed with KeyError'),
    ],
)
def test_failures_are_one_sentence_of_the_callers_kind(own_module: None, spec: str, sentence: str) -> None:
    with pytest.raises(ModelError) as caught:
        call(spec, (1,), ModelError)
    assert str(caught.value) == sentence
