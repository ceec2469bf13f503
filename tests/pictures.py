"""Pictures drawn coarsely, or not at all, where `make test` tests something else."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from trials import FULL


def draw_nothing(patch: pytest.MonkeyPatch) -> None:
    """Write no figures of trainings, except in `make test-faults`."""
    if not FULL:
        for plot in ("plot_errors", "plot_roc", "plot_reliability", "plot_training"):
            patch.setattr(f"wdsbench.train.output.{plot}", lambda *_, **__: None)
        patch.setattr("wdsbench.train.means.plot_roc", lambda *_, **__: None)


def draw_coarsely(patch: pytest.MonkeyPatch) -> None:
    """Save small pictures without texts, as layout and texts take most of a drawing's time.

    The tests of plots and of `wdsbench.view.figure` draw whole ones, as does `make test-faults`.
    """
    if not FULL:
        for module in ("wdsbench.view.figure", "wdsbench.train.plots"):
            patch.setattr(f"{module}._save", _save_coarsely)


def _save_coarsely(figure: Figure, path: Path) -> Path:
    figure.set_layout_engine("none")
    for text in figure.findobj(Text):
        text.set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=20)
    return path
