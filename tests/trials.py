"""Number of random trials: a few in `make test`, many in `make test-faults`."""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

#: True in `make test-faults`, which runs the tests with the mark ``trials`` in their full form.
FULL = os.environ.get("WDSBENCH_FULL_TRIALS") == "1"


#: Marks of a parameter that runs in `make test-faults` alone; another one runs in `make test`.
FULL_ONLY = (
    pytest.mark.trials,
    pytest.mark.skipif(not FULL, reason="part of make test-faults"),
)


Test = TypeVar("Test")


def full_only(test: Test) -> Test:
    """Decorate a test that runs in `make test-faults` alone."""
    for mark in FULL_ONLY:
        test = mark(test)
    return test


def trials(quick: int, full: int) -> int:
    """Return ``full`` in `make test-faults`, else ``quick``."""
    return full if FULL else quick
