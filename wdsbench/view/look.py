"""Shared by all pictures of a trace: colours, scales, fonts, labels of tokens.

Attention has one scale, 0 to 1; colours and widths follow the square root of the weight, since most
weights are small. The colour maps suit every colour vision.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import SubFigure
from matplotlib.font_manager import fontManager
from numpy.typing import NDArray

from wdsbench.view.trace import ViewedTrace, visible

WEIGHTS = matplotlib.colormaps["YlGnBu"]
QUANTITIES = matplotlib.colormaps["cividis"]
SIGNED = matplotlib.colormaps["PuOr_r"]
SCALE = PowerNorm(0.5, 0, 1)
PROMPT_COLOUR, ANSWER_COLOUR, BLANK = "#3d5a80", "#b34700", "#f4f4f2"
#: Largest ratio of norms that a linear scale can show.
WIDE_RATIO = 8.0
SKETCH_TITLES = {
    "self_attention": "self-attention",
    "laplacian": "Laplacian diagonal",
    "lookback": "lookback ratio",
    "entropy": "entropy (nats)",
}
_POINTS = 72.0
_MORE_SCRIPTS = ("Noto Sans CJK JP", "Noto Sans CJK SC", "WenQuanYi Zen Hei", "Arial Unicode MS")


@cache
def token_fonts() -> list[str]:
    """Return the fonts for tokens: the usual one, then installed ones with more scripts."""
    there = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(font for font in _MORE_SCRIPTS if font in there)]


def label_step(count: int, inches: float, size: float) -> int:
    """Return n: every n-th of ``count`` labels of ``size`` points fits without overlap."""
    return max(1, math.ceil(count * size * 1.15 / (inches * _POINTS)))


def norm_range(trace: ViewedTrace) -> tuple[float, float, bool]:
    """Return smallest and largest finite norm, and True if their scale is logarithmic."""
    finite = trace.norms[np.isfinite(trace.norms)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    return low, high, low > 0 and high / low > WIDE_RATIO


def row(part: SubFigure, columns: int, title: str) -> list[Axes]:
    part.suptitle(title, x=0.02, ha="left", fontsize=10, color="0.15")
    return list(part.subplots(1, columns, squeeze=False)[0])


def label_tokens(
    axes: Axes,
    trace: ViewedTrace,
    axis: str,
    inches: float,
    positions: NDArray[np.int64] | None = None,
) -> None:
    """Label an axis with every n-th token, prompt and answer in their colours."""
    tokens = np.arange(trace.num_tokens) if positions is None else positions
    size = 7.0
    every = label_step(len(tokens), inches, size)
    places = np.arange(len(tokens))[::every]
    texts = [visible(trace.texts[token], most=14) for token in tokens[::every]]
    set_ticks = axes.set_xticks if axis == "x" else axes.set_yticks
    set_ticks(places, texts, fontsize=size, fontfamily=token_fonts(), parse_math=False)
    labels = axes.get_xticklabels() if axis == "x" else axes.get_yticklabels()
    for token, label in zip(tokens[::every], labels, strict=True):
        in_prompt = trace.prompt_length is None or token < trace.prompt_length
        label.set_rotation(90 if axis == "x" else 0)
        label.set_color(PROMPT_COLOUR if in_prompt else ANSWER_COLOUR)


def bare(axes: Axes) -> None:
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def thin(bar: Any, label: str) -> None:
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7.5, length=2)
    bar.ax.minorticks_off()
    bar.set_label(label, fontsize=8)
