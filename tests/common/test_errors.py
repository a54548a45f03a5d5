"""Exit codes, their documentation, and the nearest known word."""

import re

import pytest

from common import errors
from common.errors import SpecfedError, exit_code_for, nearest

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, SpecfedError)
}


def test_every_class_has_an_exit_code_of_its_own() -> None:
    codes = [cls.exit_code for cls in CLASSES.values()]
    assert sorted(codes) == list(range(1, len(CLASSES) + 1))


def test_the_module_documents_exactly_these_classes_and_codes() -> None:
    documented = dict(re.findall(r"^ +(\w+) +exit (\d+)", errors.__doc__ or "", flags=re.MULTILINE))
    assert documented == {name: str(cls.exit_code) for name, cls in CLASSES.items()}


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_name_tells_the_exit_code(name: str) -> None:
    assert exit_code_for(name) == CLASSES[name].exit_code


@pytest.mark.parametrize("foreign", ["", "ValueError", "KeyboardInterrupt", "dataerror"])
def test_foreign_names_leave_with_1(foreign: str) -> None:
    assert exit_code_for(foreign) == 1


def test_a_subclass_elsewhere_keeps_its_parents_code() -> None:
    class Odd(errors.DataError):
        pass

    assert Odd.exit_code == 3


def test_nearest_names_one_near_word_and_nothing_far() -> None:
    assert nearest("local-epoch", ["rounds", "local-epochs", "batch-size"]) == 'Did you mean "local-epochs"?'
    assert nearest("fedavgg", iter(["fedprox", "fedavg"])) == 'Did you mean "fedavg"?'
    assert nearest("zzz", ["rounds", "local-epochs"]) == ""
    assert nearest("rounds", []) == ""
