"""A trace as one PNG: its attention graph and map at several layers side by side, its sketch,
norms of the states, and scores of a detector.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure

from wdsbench.files import atomic_file
from wdsbench.view.look import ANSWER_COLOUR, token_fonts
from wdsbench.view.panels import (
    PANEL,
    draw_graphs,
    draw_maps,
    draw_norms,
    draw_scores,
    draw_sketch,
    graph_height,
)
from wdsbench.view.trace import Selection, ViewedTrace, visible

#: Most layers side by side in a picture.
MOST_LAYERS = 8
DOTS_PER_INCH = 150


def draw_trace(path: Path, trace: ViewedTrace, shown: Selection) -> Path:
    """Draw a PNG of at most `MOST_LAYERS` layers and return ``path``."""
    panels, layers, head, scores = shown.panels, shown.layers, shown.head, shown.scores
    width = max(9.0, PANEL * len(layers) + 0.8)
    rows: list[tuple[float, Callable[[SubFigure], None]]] = []
    if "graph" in panels and trace.has_attention:
        rows.append((graph_height(trace), lambda part: draw_graphs(part, trace, layers, head)))
    if "heatmap" in panels and trace.has_attention:
        height = (width - 1.6) / max(len(layers), 2) + 1.0
        rows.append((min(height, 6.5), lambda part: draw_maps(part, trace, layers, head)))
    if "heatmap" in panels and trace.sketch is not None:
        count = len(layers) * (trace.sketch.shape[1] if head is None else 1)
        rows.append(
            (min(1.9 + 0.11 * count, 9.0), lambda part: draw_sketch(part, trace, layers, head))
        )
    if "norms" in panels:
        rows.append((min(1.9 + 0.13 * trace.num_layers, 6.5), lambda part: draw_norms(part, trace)))
    if scores is not None:
        height = 2.7 if scores.by_layer is None else min(2.7 + 0.05 * len(scores.layers), 5.0)
        rows.append((height, lambda part: draw_scores(part, trace, scores)))
    notes = trace.remarks(head) if {"graph", "heatmap"} & set(panels) else []
    below = "\n".join(textwrap.fill(note, int(width * 13)) for note in notes)
    head_height, foot_height = 0.85, 0.12 + 0.17 * (below.count("\n") + 1 if below else 0)
    heights = [head_height, *(height for height, _ in rows), foot_height]
    figure = Figure(figsize=(width, sum(heights)))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", h_pad=0.06, w_pad=0.06)
    parts: Any = figure.subfigures(len(heights), 1, height_ratios=heights)
    _head(parts[0], trace, width)
    for (_, draw), part in zip(rows, parts[1:-1], strict=True):
        draw(part)
    parts[-1].text(0.02, 0.9, below, fontsize=8, color="0.35", va="top", parse_math=False)
    return _save(figure, path)


def _head(part: SubFigure, trace: ViewedTrace, width: float) -> None:
    style: dict[str, Any] = {"va": "top", "parse_math": False}
    style["fontfamily"] = token_fonts()
    part.text(0.02, 0.92, visible(trace.name, most=110), fontsize=13, weight="bold", **style)
    part.text(0.02, 0.55, trace.described, fontsize=9, color="0.3", **style)
    if trace.answer:
        answer = "answer: " + visible(trace.answer, most=int(width * 12))
        part.text(0.02, 0.25, answer, fontsize=9, color=ANSWER_COLOUR, **style)


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file, warnings.catch_warnings():
        # Tokens of scripts that no installed font has are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(file, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return path
