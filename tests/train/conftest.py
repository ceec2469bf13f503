"""Runs without plots: a figure takes longer than training a small detector."""

from __future__ import annotations

import pytest
from trials import FULL


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no figures; `test_plots.py` and the runs of `make test-faults` draw them."""
    if not FULL:
        for plot in ("plot_errors", "plot_roc", "plot_reliability", "plot_training"):
            monkeypatch.setattr(f"wdsbench.train.output.{plot}", lambda *_, **__: None)
        monkeypatch.setattr("wdsbench.train.means.plot_roc", lambda *_, **__: None)
