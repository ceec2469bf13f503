"""Runs without plots, which take longer than training a small detector."""

from __future__ import annotations

import pytest
from pictures import draw_nothing


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no figures; `test_plots.py` and the runs of `make test-faults` draw them."""
    draw_nothing(monkeypatch)
