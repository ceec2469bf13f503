"""Patches of images as one PNG or page: the patches, and reconstructions and errors below them."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from wdsbench.files import write_whole

#: Most patches side by side.
MOST_PATCHES = 8
DOTS_PER_INCH = 150
# Inches of a patch, its title included.
_WIDTH, _HEIGHT = 1.6, 1.9


@dataclass(frozen=True)
class ShownPatches:
    """Patches to draw.

    Attributes:
        names: Titles: the image and the number of the tile.
        patches: float32 ``[n, C, P, P]``, 0 to 1.
        reconstructions: Those of a detector, of the same shape; None: not drawn, as ``errors``.
        errors: Their squared errors, mean over channels, float32 ``[n, P, P]``.
        threshold: The detector's.
    """

    names: Sequence[str]
    patches: NDArray[np.float32]
    reconstructions: NDArray[np.float32] | None = None
    errors: NDArray[np.float32] | None = None
    threshold: float | None = None


def draw_patches(path: Path, shown: ShownPatches) -> Path:
    """Draw a PNG, or an HTML page that holds it, and return ``path``."""
    drawn: list[tuple[str, NDArray[np.float32]]] = [("patch", shown.patches)]
    if shown.reconstructions is not None:
        drawn.append(("reconstruction", shown.reconstructions))
    rows = len(drawn) + (shown.errors is not None)
    size = (_WIDTH * len(shown.names) + 1.0, _HEIGHT * rows)
    figure = Figure(figsize=size, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, len(shown.names), squeeze=False)
    for place, (word, images) in enumerate(drawn):
        for axis, image in zip(axes[place], images, strict=True):
            axis.imshow(_visible(image), cmap="gray", vmin=0, vmax=1)
        axes[place, 0].set_ylabel(word, fontsize=8)
    for axis, name in zip(axes[0], shown.names, strict=True):
        axis.set_title(name, fontsize=6)
    if shown.errors is not None:
        _draw_errors(figure, axes[-1], shown.errors, shown.threshold)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    content = picture.getvalue()
    write_whole(path, content if path.suffix.lower() == ".png" else _page(content, shown))
    return path


def _draw_errors(
    figure: Figure, axes: NDArray[Any], errors: NDArray[np.float32], threshold: float | None
) -> None:
    """Draw maps on one scale, and the mean of each below it, in red above the threshold."""
    for axis, image in zip(axes, errors, strict=True):
        drawn = axis.imshow(image, cmap="inferno", vmin=0, vmax=float(errors.max()) or 1.0)
        mean = float(image.mean())
        above = threshold is not None and mean > threshold
        axis.set_xlabel(f"error {mean:.3g}", fontsize=7, color="#c00000" if above else "black")
    limit = "" if threshold is None else f", threshold {threshold:.3g}"
    axes[0].set_ylabel("squared error", fontsize=8)
    bar = figure.colorbar(drawn, ax=list(axes), fraction=0.02)
    bar.ax.tick_params(labelsize=6)
    bar.set_label(f"squared error{limit}", fontsize=6)


def _visible(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the first three channels ``[P, P, 3]``, or the first of one or two ``[P, P]``."""
    shown: NDArray[np.float32] = np.clip(image, 0, 1)
    return np.moveaxis(shown[:3], 0, -1) if len(shown) >= 3 else shown[0]


def _page(picture: bytes, shown: ShownPatches) -> bytes:
    names = html.escape(", ".join(shown.names))
    data = base64.b64encode(picture).decode()
    return (
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>wdsbench view</title>'
        f'<img alt="{names}" style="max-width: 100%" src="data:image/png;base64,{data}"></html>\n'
    ).encode("utf-8", "replace")
