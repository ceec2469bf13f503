"""A trace as one PNG: its attention graph and map at several layers side by side, its sketch,
norms of the states, and scores of a detector.
"""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from wdsbench.files import atomic_file
from wdsbench.records import TokenScores
from wdsbench.shards.format.kinds import SKETCH_VALUES
from wdsbench.view.graph import MOST_EDGES, draw_graph, place_nodes
from wdsbench.view.look import (
    ANSWER_COLOUR,
    BLANK,
    PROMPT_COLOUR,
    QUANTITIES,
    SCALE,
    SIGNED,
    SKETCH_TITLES,
    WEIGHTS,
    bare,
    label_step,
    label_tokens,
    norm_range,
    row,
    thin,
    token_fonts,
)
from wdsbench.view.trace import Selection, ViewedTrace, visible

#: Most layers side by side in a picture.
MOST_LAYERS = 8
DOTS_PER_INCH = 150
#: Inches that a layer's panel is wide.
PANEL = 3.7
# Inches of a label's line, and of the tallest graph.
_LINE, _TALLEST = 0.17, 24.0


def draw_trace(path: Path, trace: ViewedTrace, shown: Selection) -> Path:
    """Draw a PNG of at most `MOST_LAYERS` layers and return ``path``."""
    panels, layers, head, scores = shown.panels, shown.layers, shown.head, shown.scores
    width = max(9.0, PANEL * len(layers) + 0.8)
    rows: list[tuple[float, Callable[[SubFigure], None]]] = []
    if "graph" in panels and trace.has_attention:
        rows.append((_graph_height(trace), lambda part: _draw_graphs(part, trace, layers, head)))
    if "heatmap" in panels and trace.has_attention:
        height = (width - 1.6) / max(len(layers), 2) + 1.0
        rows.append((min(height, 6.5), lambda part: _draw_maps(part, trace, layers, head)))
    if "heatmap" in panels and trace.sketch is not None:
        count = len(layers) * (trace.sketch.shape[1] if head is None else 1)
        rows.append(
            (min(1.9 + 0.11 * count, 9.0), lambda part: _draw_sketch(part, trace, layers, head))
        )
    if "norms" in panels:
        rows.append(
            (min(1.9 + 0.13 * trace.num_layers, 6.5), lambda part: _draw_norms(part, trace))
        )
    if scores is not None:
        height = 2.7 if scores.by_layer is None else min(2.7 + 0.05 * len(scores.layers), 5.0)
        rows.append((height, lambda part: _draw_scores(part, trace, scores)))
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


def _graph_height(trace: ViewedTrace) -> float:
    """Return the height of a graph in inches."""
    rows = place_nodes(trace.num_tokens, trace.prompt_length).rows
    return min(max(2.2, 0.75 + _LINE * rows), _TALLEST)


def _draw_graphs(
    part: SubFigure, trace: ViewedTrace, layers: Sequence[int], head: int | None
) -> None:
    """Draw the graphs of layers side by side."""
    title = f"Attention graph, {_whose(head)}, {trace.edge_rule(head)}"
    if trace.prompt_length is not None:
        title += ": prompt left, answer right"
    places = place_nodes(trace.num_tokens, trace.prompt_length)
    inches = _graph_height(trace) - 0.75
    size = 7.5 if places.rows < 60 else 6.0
    every = label_step(places.rows, inches, size)
    panels = row(part, len(layers), title)
    _weight_bar(part, panels)
    for axes, layer in zip(panels, layers, strict=True):
        edges = trace.edges(layer, head)
        draw_graph(axes, trace, edges, size=size, every=every)
        count = edges.weight.size
        text = (
            f"{count} edge{'s' * (count != 1)}"
            if count <= MOST_EDGES
            else f"strongest {MOST_EDGES} of {count}"
        )
        axes.set_title(f"layer {trace.layer_names[layer]}", fontsize=9.5)
        axes.text(0.5, -0.01, text, ha="center", va="top", fontsize=7.5, color="0.4",
                  transform=axes.transAxes)  # fmt: skip


def _draw_maps(
    part: SubFigure, trace: ViewedTrace, layers: Sequence[int], head: int | None
) -> None:
    """Draw the maps of layers side by side."""
    title = f"Attention of each token (row) to those before it (column), {_whose(head)}"
    panels = row(part, len(layers), title)
    for place, (axes, layer) in enumerate(zip(panels, layers, strict=True)):
        square = np.ma.masked_invalid(trace.square(layer, head))
        axes.set_facecolor(BLANK)
        axes.imshow(square, cmap=WEIGHTS, norm=SCALE, interpolation="nearest")
        axes.set_title(f"layer {trace.layer_names[layer]}", fontsize=9.5)
        label_tokens(axes, trace, "x", PANEL - 1.2)
        if place == 0:
            label_tokens(axes, trace, "y", PANEL - 1.2)
        else:
            axes.set_yticks([])
        bare(axes)
        if trace.prompt_length is not None:
            for line in (axes.axhline, axes.axvline):
                line(trace.prompt_length - 0.5, color=ANSWER_COLOUR, linewidth=0.7, alpha=0.8)
    _weight_bar(part, panels)


def _draw_sketch(
    part: SubFigure, trace: ViewedTrace, layers: Sequence[int], head: int | None
) -> None:
    """Draw the four values of a sketch side by side, layers and heads below each other."""
    assert trace.sketch is not None
    chosen = trace.sketch[list(layers)].astype(np.float32)  # [layers, H, T, 4]
    if head is not None:
        chosen = chosen[:, head : head + 1]
    heads, tokens = chosen.shape[1:3]
    whose = "every head" if head is None else f"head {head}"
    panels = row(part, len(SKETCH_VALUES), f"Sketch of {whose} (rows), per token")
    for number, (axes, value) in enumerate(zip(panels, SKETCH_VALUES, strict=True)):
        rows = np.ma.masked_invalid(chosen[..., number].reshape(-1, tokens))
        axes.set_facecolor(BLANK)
        image = axes.imshow(rows, cmap=QUANTITIES, aspect="auto", interpolation="nearest")
        axes.set_title(SKETCH_TITLES[value], fontsize=9)
        label_tokens(axes, trace, "x", 1.8)
        bare(axes)
        for edge in range(heads, len(rows), heads):
            axes.axhline(edge - 0.5, color="white", linewidth=1.6)
        middles = [place * heads + (heads - 1) / 2 for place in range(len(layers))]
        names = [f"layer {trace.layer_names[layer]}" for layer in layers]
        names = names if number == 0 else [""] * len(layers)
        axes.set_yticks(middles, names, fontsize=8)
        if rows.count():
            aspect = max(18, len(rows))  # as thin on tall panels as on flat ones
            thin(part.colorbar(image, ax=axes, shrink=0.8, aspect=aspect, pad=0.02), "")
        else:
            axes.text(0.5, 0.5, "needs the length\nof the prompt", ha="center", va="center",
                      fontsize=8, color="0.4", transform=axes.transAxes)  # fmt: skip


def _draw_norms(part: SubFigure, trace: ViewedTrace) -> None:
    """Draw the norms of all stored states, of one token as a line by layer."""
    norms = np.ma.masked_invalid(trace.norms)
    if norms.shape[1] == 1:
        (axes,) = row(part, 1, "Norm of the state of the last token, by layer")
        axes.plot(trace.layer_names, norms[:, 0], "o-", color=PROMPT_COLOUR)
        axes.set_xlabel("layer", fontsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        return
    tokens = trace.state_tokens
    whole = len(tokens) == trace.num_tokens
    (axes,) = row(part, 1, f"Norm of every state{'' if whole else ' that is kept'}")
    low, high, wide = norm_range(trace)
    norm = LogNorm(low, high) if wide else Normalize(low, high)
    image = axes.imshow(norms, cmap=QUANTITIES, norm=norm, aspect="auto", interpolation="nearest")
    axes.set_ylabel("layer", fontsize=8)
    if trace.model_layers is None:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))
    else:
        step = max(1, math.ceil(trace.num_layers / 12))
        axes.set_yticks(np.arange(trace.num_layers)[::step], [*map(str, trace.layer_names[::step])])
    label_tokens(axes, trace, "x", 7.0, tokens)
    bare(axes)
    axes.tick_params(axis="y", labelsize=8)
    if trace.prompt_length is not None and whole:
        axes.axvline(trace.prompt_length - 0.5, color="white", linewidth=1.6)
    bar = part.colorbar(image, ax=axes, aspect=18, pad=0.012)
    if wide:
        bar.locator = LogLocator(subs=(1, 2, 5))
        bar.formatter = FuncFormatter(lambda value, _: f"{value:g}")
        bar.update_ticks()
    thin(bar, "norm, logarithmic" if wide else "norm")


def _draw_scores(part: SubFigure, trace: ViewedTrace, scores: TokenScores) -> None:
    """Draw a detector's score along the tokens and, if it has them, by layer."""
    columns = 1 if scores.by_layer is None else 2
    title = f"Score of {scores.detector} at each token ({scores.remark})"
    panels = row(part, columns, "\n".join(textwrap.wrap(title, 120)))
    places = np.arange(len(scores.positions))
    line = panels[0]
    line.plot(places, scores.scores, "o-", color=ANSWER_COLOUR, markersize=4, linewidth=1.4)
    line.set(ylim=(-0.03, 1.03), xlim=(-0.5, len(places) - 0.5))
    line.set_ylabel("P(hallucinated)", fontsize=8)
    line.grid(color="0.92", linewidth=0.8)
    line.set_axisbelow(True)
    line.spines[["top", "right"]].set_visible(False)
    if scores.threshold is not None:
        line.axhline(scores.threshold, color="0.45", linewidth=1, linestyle=(0, (4, 3)))
        line.annotate(f"threshold {scores.threshold:.3g}", (1, scores.threshold),
                      xycoords=("axes fraction", "data"), ha="right", va="bottom",
                      fontsize=7.5, color="0.35")  # fmt: skip
    for axes in panels:
        label_tokens(axes, trace, "x", 7.0 / columns, scores.positions)
        axes.tick_params(axis="y", labelsize=8)
    if scores.by_layer is not None:
        axes = panels[1]
        most = max(float(np.abs(scores.by_layer).max()), 1e-6) if scores.signed else 1.0
        image = axes.imshow(
            scores.by_layer,
            cmap=SIGNED if scores.signed else QUANTITIES,
            vmin=-most if scores.signed else 0,
            vmax=most,
            aspect="auto",
            interpolation="nearest",
        )
        step = max(1, math.ceil(len(scores.layers) / 12))
        names = [str(trace.layer_names[layer]) for layer in scores.layers]
        axes.set_yticks(np.arange(len(names))[::step], names[::step])
        axes.set_ylabel("layer", fontsize=8)
        bare(axes)
        thin(part.colorbar(image, ax=axes, aspect=18, pad=0.012), scores.by_layer_title)


def _whose(head: int | None) -> str:
    return "mean over heads" if head is None else f"head {head}"


def _weight_bar(part: SubFigure, panels: list[Axes]) -> None:
    marks = [0, 0.01, 0.05, 0.2, 0.5, 1]
    image = ScalarMappable(SCALE, WEIGHTS)
    bar = part.colorbar(image, ax=panels, shrink=0.8, aspect=25, pad=0.015, ticks=marks)
    bar.ax.set_yticklabels([f"{mark:g}" for mark in marks])
    thin(bar, "attention weight")
