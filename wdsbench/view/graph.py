"""The attention graph of one layer as a drawing: the prompt's tokens in a column on the left, the
answer's in one on the right, an edge's width and colour its weight.

If the prompt's length is unknown, all tokens are in the left column. Edges within a column are arcs
that open towards the middle. The strongest edges are drawn last, on top.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.path import Path as Curve
from numpy.typing import NDArray

from wdsbench.records import EdgeLists
from wdsbench.view.look import ANSWER_COLOUR, PROMPT_COLOUR, SCALE, WEIGHTS, token_fonts
from wdsbench.view.trace import ViewedTrace, visible

#: Edges drawn in a panel, the strongest.
MOST_EDGES = 1500
#: How far an arc opens, in the distance of the columns.
_ARC = 0.62
_CHARACTERS = 16


@dataclass(frozen=True)
class Places:
    """Positions of nodes: ``x`` 0 (left) or 1, ``y`` from 0 (top) downwards, one step per token."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]

    @property
    def rows(self) -> int:
        """Tokens of the longer column."""
        return max(int((self.x == side).sum()) for side in (0, 1))


def place_nodes(tokens: int, prompt_length: int | None) -> Places:
    """Return the places of ``tokens`` nodes; the shorter column has wider steps."""
    prompt = tokens if prompt_length is None else prompt_length
    counts = (prompt, tokens - prompt)
    steps = [(np.arange(count) + 0.5) * max(counts) / max(count, 1) - 0.5 for count in counts]
    return Places(np.repeat([0.0, 1.0], counts), np.concatenate(steps))


def curves(places: Places, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the cubic Bezier points ``[E, 4, 2]`` of edges ``[2, E]``."""
    source, target = index
    start = np.stack([places.x[source], places.y[source]], axis=1)
    end = np.stack([places.x[target], places.y[target]], axis=1)
    span = np.abs(end[:, 1] - start[:, 1]) / max(places.rows - 1, 1)
    same = start[:, 0] == end[:, 0]
    inwards = np.where(start[:, 0] == 0, 1.0, -1.0)
    reach = np.where(same, inwards * (0.1 + _ARC * span), 0.5)
    first, second = start.copy(), end.copy()
    first[:, 0] += reach
    second[:, 0] += np.where(same, reach, -0.5)
    return np.stack([start, first, second, end], axis=1)


def strongest(weight: NDArray[np.float16], most: int = MOST_EDGES) -> NDArray[np.int64]:
    """Return the numbers of the ``most`` strongest edges, the weakest first."""
    return np.argsort(weight, kind="stable")[-most:]


def draw_graph(
    axes: Axes, trace: ViewedTrace, edges: EdgeLists, *, size: float, every: int
) -> None:
    """Draw one layer's graph; every ``every``-th token has a label of ``size`` points."""
    places = place_nodes(trace.num_tokens, trace.prompt_length)
    shown = strongest(edges.weight)
    weight = edges.weight[shown].astype(np.float64)
    share = np.asarray(SCALE(weight))
    codes = [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4]
    index = edges.index[:, shown].astype(np.int64)
    paths = [Curve(points, codes) for points in curves(places, index)]
    axes.add_collection(
        PathCollection(
            paths,
            facecolors="none",
            edgecolors=WEIGHTS(share),
            linewidths=0.25 + 4.2 * share**1.5,
            capstyle="round",
        )
    )
    parts = [(0.0, "right", -0.05, PROMPT_COLOUR), (1.0, "left", 0.05, ANSWER_COLOUR)]
    for side, align, shift, colour in parts:
        own = np.flatnonzero(places.x == side)
        axes.scatter(
            places.x[own],
            places.y[own],
            s=12,
            color=colour,
            edgecolor="white",
            linewidth=0.6,
            zorder=3,
        )
        for place, token in enumerate(own):
            if place % every == 0:
                axes.text(
                    side + shift,
                    places.y[token],
                    visible(trace.texts[token], most=_CHARACTERS),
                    ha=align,
                    va="center",
                    fontsize=size,
                    fontfamily=token_fonts(),
                    color=colour,
                    parse_math=False,
                )
    axes.set(xlim=(-0.72, 1.72), ylim=(places.rows - 0.3, -0.7))
    axes.set_axis_off()
