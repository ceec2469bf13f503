"""Runs without plots: a figure takes longer than training a small detector."""

from __future__ import annotations

import pytest
from trials import FULL


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no figures; `test_plots.py` and the runs of `make test-faults` draw them."""
    if not FULL:
        for plot in ("output.plot_roc", "output.plot_reliability", "output.plot_training"):
            monkeypatch.setattr(f"wdsbench.train.{plot}", lambda *_, **__: None)
        monkeypatch.setattr("wdsbench.train.means.plot_roc", lambda *_, **__: None)
