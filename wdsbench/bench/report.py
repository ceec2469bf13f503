"""The report of a benchmark: a table, one line of JSON, and a figure with one panel per part."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import wdsbench
from wdsbench import _core
from wdsbench.bench.data import SEED
from wdsbench.bench.part import Part, Settings
from wdsbench.bench.timing import CaseResult
from wdsbench.cores import usable_cores
from wdsbench.files import atomic_file


def as_json(scenario: str, parts: Sequence[Part], settings: Settings) -> dict[str, Any]:
    """Return the JSON of a benchmark: cases and ratios, each named ``PART/NAME``."""
    return {
        "scenario": scenario,
        # What the figures depend on.
        "machine": {
            "commit": _commit(),
            "cpu": _cpu_name(),
            "cores": usable_cores(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "half_kernel": _core.half_kernel(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "wdsbench": wdsbench.__version__,
        },
        "settings": {
            "repeats": settings.repeats,
            "scale": settings.scale,
            "least_seconds": settings.least_seconds,
            "more_readers": settings.more_readers,
            "seed": SEED,
        },
        "parts": {
            part.name: {
                **{name: getattr(part, name) for name in ("title", "measure", "unit", "baseline")},
                "facts": dict(part.facts),
                "notes": list(part.notes),
            }
            for part in parts
        },
        "cases": [
            {**asdict(result), "name": f"{part.name}/{result.name}"}
            for part in parts
            for result in part.results
        ],
        "ratios": {
            f"{part.name}/{name}": value for part in parts for name, value in part.ratios.items()
        },
    }


def print_part(part: Part, console: Console) -> None:
    """Print the table of one part, with ratios to its baseline, then its notes."""
    baseline = None if part.baseline is None else part.value(part.baseline)
    rows = [_cells(result, part, baseline) for result in part.results]
    table = Table()
    for column in rows[0]:
        left = column == "case"
        table.add_column(column, justify="left" if left else "right", no_wrap=left, overflow="fold")
    for row in rows:
        table.add_row(*row.values())
    console.print(part.title, highlight=False, soft_wrap=True)
    console.print(table)
    for note in part.notes:
        console.print(note, highlight=False, soft_wrap=True)


def _cells(result: CaseResult, part: Part, baseline: float | None) -> dict[str, str]:
    """Return one row by column; the columns depend on the part's measure."""
    cells = {"case": result.name}
    if part.measure in ("seconds", "memory_mb"):
        digits = ".4f" if part.measure == "seconds" else ",.1f"
        cells[part.unit] = f"{part.value(result.name):{digits}}"
        return {**cells, "spread": f"{result.spread:.1%}", "repeats": str(result.repeats)}
    if part.measure == "batches_per_s":
        cells[part.unit] = _number(result.batches_per_s, ",.1f")
        cells["GB/s"] = _number(result.gbps, ".2f")
    else:
        rate = "float32 GB/s" if part.measure == "samples_per_s" else part.unit
        cells[rate] = _number(result.gbps, ".2f")
    if baseline is not None:
        cells[f"over {part.baseline}"] = f"{part.value(result.name) / baseline:.2f}"
    if part.measure != "batches_per_s":
        cells["samples/s"] = _number(result.samples_per_s, ",.0f")
    cells["spread"] = f"{result.spread:.0%}"
    return {**cells, "epochs": _number(result.epochs, ",.0f")}


def _number(value: float | None, digits: str) -> str:
    return "" if value is None else f"{value:{digits}}"


def _commit() -> str | None:
    """Return the commit of the checkout that this package runs from, with ``-dirty`` if files
    differ; None outside a checkout.
    """
    git, package = shutil.which("git"), Path(wdsbench.__file__).parent

    def answer(*words: str) -> str | None:
        if git is None:
            return None
        done = subprocess.run(
            [git, "-C", str(package), *words], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else None

    # An installed package may be inside an unrelated checkout.
    if answer("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return answer("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


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
    heights = [FRAME_INCHES + BAR_INCHES * len(part.results) for part in parts]
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
    names = [result.name for result in part.results]
    values = [part.value(name) for name in names]
    # Parts without a baseline have no competitors.
    ours = [part.baseline is None or name.startswith(("ours", "union")) for name in names]
    colours = [OURS_COLOUR if own else OTHER_COLOUR for own in ours]
    drawn = axes.barh(range(len(names)), values, color=colours)
    labels = [f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in values]
    axes.bar_label(drawn, labels, padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=9)
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
