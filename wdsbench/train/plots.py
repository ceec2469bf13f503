"""Plots of a run as PNG files: ROC curves, reliability diagrams, and loss and AUROC per epoch.

Figures are made without pyplot, so they work in threads and without a display. Up to 21 detectors
have distinct combinations of colour and line style.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import roc_curve

from wdsbench.files import atomic_file
from wdsbench.train.metrics import ReliabilityBins

# Okabe and Ito (2008): distinct for every common colour vision; without yellow, too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
LINE_STYLES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))
BEFORE, AFTER = "#D55E00", "#0072B2"
DOTS_PER_INCH = 150
# False positive rates at which curves of several trainings are averaged.
GRID = 1001
# Panels of the reliability plot side by side.
PANEL_COLUMNS = 4
# Bins of the histogram of errors.
ERROR_BINS = 50
# Losses this far apart are drawn on a logarithmic axis.
WIDE_RATIO = 8.0


@dataclass(frozen=True)
class RocCurve:
    """A detector's scores and the figures its legend shows.

    Attributes:
        scores: float ``[n]``; or ``[trainings, n]``, of which the mean curve is drawn.
        interval: Bootstrap interval of ``auroc``.
    """

    name: str
    scores: NDArray[np.float64]
    auroc: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class ErrorCurve:
    """Reconstruction errors ``[n]`` of a detector, the samples' labels (NaN: unknown), and its
    threshold.
    """

    errors: NDArray[np.float64]
    labels: NDArray[np.float64]
    threshold: float


@dataclass(frozen=True)
class ReliabilityCurve:
    """Reliability of a detector's probabilities before and after temperature scaling.

    Attributes:
        name: The detector.
        before: Bins of the unscaled probabilities, whose calibration error is ``ece``.
        after: Bins of the scaled probabilities, whose calibration error is ``ece_scaled``.
    """

    name: str
    before: ReliabilityBins
    after: ReliabilityBins
    ece: float
    ece_scaled: float
    temperature: float


def plot_roc(
    path: Path, labels: ArrayLike, curves: Sequence[RocCurve], *, images: bool = False
) -> Path:
    """Draw ROC curves over the same ``labels`` (``[n]`` of 0 and 1, of traces or ``images``) and
    return ``path``.
    """
    truth = np.asarray(labels)
    figure, (axes,) = _figure(10.4, 6.4, columns=1)
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle=(0, (4, 4)))
    width = max((len(curve.name) for curve in curves), default=0)
    # The best is drawn last, on top; the legend begins with it.
    ranked = sorted(curves, key=lambda curve: -curve.auroc)
    for place, curve in enumerate(ranked):
        low, high = curve.interval
        label = f"{curve.name:<{width}}  {curve.auroc:.3f} [{low:.3f}, {high:.3f}]"
        look = {"linewidth": 1.8, "zorder": 3 + len(ranked) - place, **_look(place)}
        axes.plot(*_roc(truth, curve.scores), label=label, **look)
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("true positive rate")
    positives = int(np.count_nonzero(truth))
    ones, zeros = ("anomalous", "normal") if images else ("hallucinated", "right")
    axes.set_title(f"Test split: {positives} {ones}, {truth.size - positives} {zeros}")
    _legend_beside(axes, "AUROC [bootstrap interval]")
    return _save(figure, path)


def plot_reliability(path: Path, curves: Sequence[ReliabilityCurve]) -> Path:
    """Draw one reliability diagram per detector and return ``path``.

    A point's area grows with the samples of its bin; the bars below show their number. ``curves``
    must not be empty.
    """
    if not curves:
        raise ValueError("curves is empty; no detector of the run returns probabilities")
    columns = min(PANEL_COLUMNS, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(3.1 * columns if columns > 1 else 4.6, 4.4 * rows + 0.6))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", h_pad=0.09)
    grid = figure.add_gridspec(rows * 2, columns, height_ratios=[3, 1] * rows)
    for place, curve in enumerate(curves):
        row, column = divmod(place, columns)
        above = figure.add_subplot(grid[2 * row, column])
        below = figure.add_subplot(grid[2 * row + 1, column], sharex=above)
        _reliability_panel(above, below, curve)
        if column == 0:
            above.set_ylabel("share hallucinated")
            below.set_ylabel("samples")
        below.set_xlabel("probability of being hallucinated")
    handles = [
        Line2D([], [], color=BEFORE, linestyle="--", marker="o", markerfacecolor="white"),
        Line2D([], [], color=AFTER, marker="o"),
    ]
    names = ["unscaled", "scaled by temperature T (fitted on validation)"]
    note = "point area: number of samples in the bin"
    figure.legend(handles, names, loc="outside upper center", ncols=2, frameon=False, title=note)
    return _save(figure, path)


def plot_errors(path: Path, curves: Mapping[str, ErrorCurve]) -> Path:
    """Draw a histogram of the errors of each detector, by name, and return ``path``."""
    figure, panels = _figure(5.2 * len(curves), 4.2, columns=len(curves))
    for axes, (name, curve) in zip(panels, curves.items(), strict=True):
        anomalous = curve.labels == 1
        parts = [curve.errors[~anomalous], curve.errors[anomalous]]
        colours, names = (AFTER, BEFORE), ("normal or unknown", "anomalous")
        shown = 2 if anomalous.any() else 1
        axes.hist(parts[:shown], ERROR_BINS, stacked=True, color=colours[:shown])
        axes.axvline(curve.threshold, color="black", linewidth=1.2, linestyle="--")
        above = np.mean(curve.errors > curve.threshold)
        axes.set_title(f"{name}: {100 * above:.3g} % above {curve.threshold:.3g}")
        axes.set(xlabel="reconstruction error", ylabel="test samples")
        if shown == 2:
            handles = [Line2D([], [], color=colour, linewidth=6) for colour in colours]
            axes.legend(handles, names, frameon=False)
    return _save(figure, path)


def plot_training(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    """Draw training loss and validation AUROC, or validation error, per epoch of ``metrics.jsonl``;
    return ``path``. The detectors of ``records`` all have the one or the other.
    """
    errors = any(record["val_auroc"] is None for record in records)
    figure_name, title, digits = (
        ("val_error", "error", ".3g") if errors else ("val_auroc", "AUROC", ".3f")
    )
    figure, (left, right) = _figure(13, 4.8, columns=2)
    names = list(dict.fromkeys(record["detector"] for record in records))
    width = max((len(name) for name in names), default=0)
    for place, name in enumerate(names):
        own = [record for record in records if record["detector"] == name]
        epochs = [record["epoch"] + 1 for record in own]
        reached = [record[figure_name] for record in own]
        best = int(np.argmin(reached) if errors else np.argmax(reached))
        look = {"linewidth": 1.6, **_look(place)}
        # A single epoch is a point, not a line.
        look["marker"] = "." if len(own) == 1 else ""
        left.plot(epochs, [record["loss"] for record in own], **look)
        label = f"{name:<{width}}  {reached[best]:{digits}} at {epochs[best]:>2}"
        right.plot(epochs, reached, label=label, **look)
        right.plot(epochs[best], reached[best], "o", color=look["color"], markersize=6, zorder=4)
    left.set(xlabel="epoch", ylabel="training loss", title="Training loss")
    right.set(xlabel="epoch", ylabel=f"validation {title}", title=f"Validation {title}")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    losses = [record["loss"] for record in records]
    if losses and min(losses) > 0 and max(losses) / min(losses) > WIDE_RATIO:
        left.set_yscale("log")
        left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        left.yaxis.set_minor_locator(NullLocator())
        left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _legend_beside(right, "best epoch (dot)")
    return _save(figure, path)


def _roc(
    truth: NDArray[Any], scores: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return false and true positive rates; of several trainings the mean true rates."""
    if np.ndim(scores) == 1:
        false_rate, true_rate, _ = roc_curve(truth, scores)
        return false_rate, true_rate
    grid = np.linspace(0, 1, GRID)
    curves = []
    for row in scores:
        false_rate, true_rate, _ = roc_curve(truth, row, drop_intermediate=False)
        # Among points of equal false rate np.interp uses the highest.
        curves.append(np.interp(grid, false_rate, true_rate))
    # The line starts at (0, 0), before the step at false rate 0.
    return np.append(0, grid), np.append(0, np.mean(curves, axis=0))


def _reliability_panel(above: Axes, below: Axes, curve: ReliabilityCurve) -> None:
    for axes in (above, below):
        _tidy(axes)
    above.plot([0, 1], [0, 1], color="0.7", linewidth=1, linestyle=(0, (4, 4)))
    bins = len(curve.before.count)
    for found, colour, line, face in (
        (curve.before, BEFORE, "--", "white"),
        (curve.after, AFTER, "-", AFTER),
    ):
        filled = found.count > 0
        x, y, count = found.probability[filled], found.share[filled], found.count[filled]
        sizes = 6 + 80 * count / max(count.max(initial=1), 1)
        # Faint: with few samples per bin the line is noisy.
        above.plot(x, y, color=colour, linestyle=line, linewidth=1, alpha=0.45)
        above.scatter(x, y, s=sizes, facecolor=face, edgecolor=colour, linewidth=1.2, zorder=3)
    edges = np.linspace(0, 1, bins + 1)
    below.stairs(curve.after.count, edges, fill=True, color=AFTER, alpha=0.35)
    below.stairs(curve.before.count, edges, color=BEFORE, linewidth=1.3)
    above.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    above.set_title(
        f"{curve.name}\nECE {curve.ece:.3f} → {curve.ece_scaled:.3f}, T {curve.temperature:.2f}",
        fontsize=9.5,
    )
    above.tick_params(labelbottom=False)
    below.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    for axes in (above, below):
        axes.tick_params(labelsize=8)


def _figure(width: float, height: float, columns: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", w_pad=0.12)
    panels = [figure.add_subplot(1, columns, place + 1) for place in range(columns)]
    for axes in panels:
        _tidy(axes)
    return figure, panels


def _tidy(axes: Axes) -> None:
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _legend_beside(axes: Axes, title: str) -> None:
    """Draw the legend to the right of ``axes``, in a monospaced font."""
    if not axes.get_legend_handles_labels()[0]:
        return
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.02, 1),
        borderaxespad=0,
        title=title,
        alignment="left",
        frameon=False,
        handlelength=3.2,
        prop={"family": "DejaVu Sans Mono", "size": 8.5},
    )


def _look(place: int) -> dict[str, Any]:
    """Return colour and line style of line ``place``."""
    style = LINE_STYLES[(place // len(COLOURS)) % len(LINE_STYLES)]
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": style}


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        # Without the software version the same figures give the same bytes.
        figure.savefig(
            file,
            format="png",
            dpi=DOTS_PER_INCH,
            bbox_inches="tight",  # includes the legend
            pad_inches=0.15,
            metadata={"Software": None},
        )
    return path
