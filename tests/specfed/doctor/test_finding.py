"""What becomes of a check that takes too long."""

import subprocess
import sys

import pytest

from specfed.doctor.finding import leave_late_checks, within


def test_a_process_with_a_late_check_ends_well() -> None:
    # Work in C++ that takes Python's lock again and again: met by the interpreter's end, it aborts.
    script = """
import torch
from specfed.doctor.finding import leave_late_checks, within
def work():
    while True:
        (torch.ones(64, requires_grad=True) * 2).sum().backward()
try:
    within(0.3, work)
except TimeoutError:
    print("late")
leave_late_checks(5)
"""
    left = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (left.returncode, left.stdout, left.stderr) == (5, "late\n", "")


def test_one_whose_checks_are_done_goes_on() -> None:
    assert within(10, lambda: 1) == 1
    with pytest.raises(KeyError):
        within(10, lambda: {}["x"])
    leave_late_checks(5)
