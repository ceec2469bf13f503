"""Plots of a run as PNG files: ROC curves, and loss and AUROC per epoch.

Figures are made without pyplot: no window, no global state, safe in threads and on machines without
a display.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from wdsbench.files import atomic_file

# Okabe and Ito (2008): told apart with every common colour vision; yellow left out, too pale for
# lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
LINE_STYLES = ("-", "--", ":")
DOTS_PER_INCH = 150


@dataclass(frozen=True)
class RocCurve:
    """A detector's scores and the figures its legend shows.

    Attributes:
        name: The detector.
        scores: float ``[n]``, more meaning hallucinated.
        auroc: Area under the curve.
        interval: Its bootstrap interval.
    """

    name: str
    scores: NDArray[np.float64]
    auroc: float
    interval: tuple[float, float]


def plot_roc(path: Path, labels: ArrayLike, curves: Sequence[RocCurve]) -> Path:
    """Draw ROC curves over the same ``labels`` (``[n]`` of 0 and 1) and return ``path``."""
    from sklearn.metrics import roc_curve

    truth = np.asarray(labels)
    figure, (axes,) = _figure(6.4, 6.4, columns=1)
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle=(0, (4, 4)))
    for place, curve in enumerate(sorted(curves, key=lambda curve: -curve.auroc)):
        false_rate, true_rate, _ = roc_curve(truth, curve.scores)
        low, high = curve.interval
        label = f"{curve.name}  {curve.auroc:.3f} [{low:.3f}, {high:.3f}]"
        axes.plot(false_rate, true_rate, linewidth=1.8, label=label, **_look(place))
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    axes.set_xlabel("false positive rate (right answers called hallucinated)")
    axes.set_ylabel("true positive rate (hallucinations found)")
    positives = int(np.count_nonzero(truth))
    axes.set_title(f"Test split: {positives} hallucinated, {truth.size - positives} right")
    axes.legend(loc="lower right", title="AUROC [bootstrap interval]", prop={"size": 9})
    return _save(figure, path)


def plot_training(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    """Draw training loss and validation AUROC per epoch and return ``path``.

    Args:
        path: Of the PNG.
        records: Lines of ``metrics.jsonl``: detector, epoch, loss, val_auroc.
    """
    figure, (left, right) = _figure(11, 4.4, columns=2)
    names = list(dict.fromkeys(record["detector"] for record in records))
    for place, name in enumerate(names):
        own = [record for record in records if record["detector"] == name]
        epochs = [record["epoch"] + 1 for record in own]
        aurocs = [record["val_auroc"] for record in own]
        best = int(np.argmax(aurocs))
        look = {"linewidth": 1.8, **_look(place)}
        left.plot(epochs, [record["loss"] for record in own], label=name, **look)
        right.plot(epochs, aurocs, label=f"{name}  {aurocs[best]:.3f} at {epochs[best]}", **look)
        right.plot(epochs[best], aurocs[best], "o", color=look["color"], markersize=6)
    left.set(xlabel="epoch", ylabel="training loss (cross-entropy)", title="Training loss")
    right.set(xlabel="epoch", ylabel="validation AUROC", title="Validation AUROC")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend()
    right.legend(title="best, kept (dot)")
    return _save(figure, path)


def _figure(width: float, height: float, columns: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    panels = [figure.add_subplot(1, columns, place + 1) for place in range(columns)]
    for axes in panels:
        axes.grid(color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _look(place: int) -> dict[str, Any]:
    """Return colour and line style of the ``place``-th line; styles change when colours run out."""
    style = LINE_STYLES[(place // len(COLOURS)) % len(LINE_STYLES)]
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": style}


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        # No software version in the file: the same figures give the same bytes.
        figure.savefig(file, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return path
