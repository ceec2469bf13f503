"""Number of random trials: a few in `make test`, many in `make test-faults`."""

from __future__ import annotations

import os

import pytest

#: True in `make test-faults`, which runs the tests with the mark ``trials`` in their full form.
FULL = os.environ.get("WDSBENCH_FULL_TRIALS") == "1"


#: Marks of a case that runs in `make test-faults` alone; another case of it runs in `make test`.
FULL_ONLY = (
    pytest.mark.trials,
    pytest.mark.skipif(not FULL, reason="part of make test-faults"),
)


def trials(quick: int, full: int) -> int:
    """Return ``full`` in `make test-faults`, else ``quick``."""
    return full if FULL else quick
