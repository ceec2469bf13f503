"""All parts of a run in one figure: one panel per part, one bar per case, a baseline line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from wdsbench.bench.part import Part
from wdsbench.files import atomic_file

# Okabe and Ito (2008): distinguishable with every common colour vision.
OURS_COLOUR = "#0072B2"
OTHER_COLOUR = "#B0B0B0"
BASELINE_COLOUR = "#D55E00"

WIDTH_INCHES = 8.0
BAR_INCHES = 0.27
#: Height of a panel's title, axis and gaps.
FRAME_INCHES = 1.0
DOTS_PER_INCH = 150

#: Metadata by suffix: dates and program versions are left out of the file.
METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
}


def check_plot_path(path: Path) -> None:
    """Raise ValueError for a wrong suffix, before hours of measuring."""
    if path.suffix[1:] not in METADATA:
        allowed = ", ".join(f".{name}" for name in METADATA)
        raise ValueError(f"--plot {path}: the suffix is not one of {allowed}")


def plot_parts(path: Path, parts: Sequence[Part]) -> Path:
    """Draw horizontal bars of every part's measure and return ``path``."""
    heights = [FRAME_INCHES + BAR_INCHES * len(_bars(part)) for part in parts]
    figure = Figure(figsize=(WIDTH_INCHES, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(parts), 1, height_ratios=heights)
    for place, part in enumerate(parts):
        _draw(figure.add_subplot(grid[place]), part)
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.suffix[1:]
    with atomic_file(path) as file:
        figure.savefig(file, format=kind, dpi=DOTS_PER_INCH, metadata=METADATA[kind])
    return path


def _draw(axes: Axes, part: Part) -> None:
    bars = _bars(part)
    values = [value for _, value in bars]
    drawn = axes.barh(
        range(len(bars)),
        values,
        color=[OURS_COLOUR if _is_ours(name, part) else OTHER_COLOUR for name, _ in bars],
    )
    labels = [f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in values]
    axes.bar_label(drawn, labels, padding=3, fontsize=8)
    axes.set_yticks(range(len(bars)), [name for name, _ in bars], fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    unit = part.unit
    if part.baseline is not None:
        value = part.value(part.baseline)
        axes.axvline(value, color=BASELINE_COLOUR, linewidth=1.4, linestyle="--")
        unit = f"{unit} (dashed: {part.baseline})"
    axes.set_xlabel(unit, fontsize=9)
    axes.set_title(part.title, fontsize=10, loc="left")
    axes.grid(axis="x", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _bars(part: Part) -> list[tuple[str, float]]:
    return [(result.name, part.value(result.name)) for result in part.results]


def _is_ours(name: str, part: Part) -> bool:
    """Return True if a bar is one of ours; parts without a baseline have no others."""
    return part.baseline is None or name.startswith(("ours", "union"))
