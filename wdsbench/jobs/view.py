"""One trace, or patches of images, as a picture or a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wdsbench.options import option

if TYPE_CHECKING:
    from wdsbench.records import TokenScores
    from wdsbench.shards.read.index import DatasetIndex
    from wdsbench.view.image_figure import ShownPatches
    from wdsbench.view.trace import ViewedTrace

_PICTURE, _PAGES = ".png", (".html", ".htm")
_PANELS = ("graph", "heatmap", "norms")


@dataclass(frozen=True, kw_only=True)
class ViewJob:
    """Options of :func:`view`."""

    path: str = option(help="Data set (folder or tar files), or raw trace file.", argument=True)
    trace: int | None = option(None, "Position of the trace, from 0 [0].")
    sample: str | None = option(None, "Or its member key.")
    question: str | None = option(None, "Or its question id.")
    layers: tuple[int, ...] | None = option(
        None, "Layers of the model to draw, as 0,15,-1 [first, middle, last]."
    )
    head: int | None = option(None, "Attention head to draw [mean over heads].")
    graph: bool = option(False, "Draw attention graphs.")
    heatmap: bool = option(False, "Draw attention maps and sketches.")
    norms: bool = option(False, "Draw norms of the states.")
    scores: Path | None = option(
        None,
        "Folder of a detector: draw its score at each token, of patches the errors.",
    )
    out: Path | None = option(None, "A .png or .html file [view-....png in this folder].")

    def __post_init__(self) -> None:
        if self.out is not None and self.out.suffix.lower() not in (_PICTURE, *_PAGES):
            raise ValueError(f"--out is {self.out}; the name must end in .png or .html.")

    @property
    def panels(self) -> list[str]:
        """Panels that are drawn: those asked for, or all."""
        return [name for name in _PANELS if getattr(self, name)] or list(_PANELS)


@dataclass(frozen=True)
class Drawing:
    """A drawn trace."""

    path: Path
    trace: str  # its name
    description: str  # its question, label and sizes
    layers: list[int]  # numbers of the drawn layers in the model
    panels: list[str]
    notes: list[str]  # facts about missing or reduced attention


def view(job: ViewJob) -> Drawing:
    """Draw one trace: attention graph and map, norms of the states, a detector's scores; or, of a
    data set of images, up to eight patches with a detector's reconstructions and errors.

    Raises:
        ValueError: The trace, layer or head does not exist.
        WdsbenchError: The data cannot be read, or has nothing that the panels need.
    """
    from wdsbench.view.source import open_trace
    from wdsbench.view.trace import Selection

    index = _image_index(job.path)
    if index is not None:
        return _view_patches(job, index)
    viewed, index = open_trace(job.path, trace=job.trace, sample=job.sample, question=job.question)
    panels = job.panels
    layers = _positions(job.layers, viewed.layer_names)
    _check(viewed, panels, layers, job.head, scored=job.scores is not None)
    scores = None if job.scores is None else _scores(job.scores, viewed, index)
    out = job.out or Path(f"view-{viewed.slug}{_PICTURE}")
    if out.suffix.lower() == _PICTURE:
        from wdsbench.view.figure import draw_trace as draw
    else:
        from wdsbench.view.page import write_page as draw
    draw(out, viewed, Selection(panels, layers, job.head, scores))
    return Drawing(
        path=out,
        trace=viewed.name,
        description=viewed.described,
        layers=[viewed.layer_names[layer] for layer in layers],
        panels=[*panels, *(["scores"] if scores else [])],
        notes=viewed.remarks(job.head) if {"graph", "heatmap"} & set(panels) else [],
    )


def _image_index(path: str) -> DatasetIndex | None:
    """Return the opened data set of images at ``path``; None if there is another thing."""
    from wdsbench.shards.read.open import open_index
    from wdsbench.traces.files import kind_of

    if kind_of(Path(path)) is not None and not Path(path).is_dir():
        return None
    index = open_index(path)
    return index if index.tensor.name == "image" else None


def _view_patches(job: ViewJob, index: DatasetIndex) -> Drawing:
    """Draw the patch that is asked for and those after it."""
    from wdsbench.shards.read.sample import StoredSample
    from wdsbench.view.image_figure import MOST_PATCHES, ShownPatches, draw_patches
    from wdsbench.view.source import stored_row

    for name in ("layers", "head", *_PANELS):
        if getattr(job, name) not in (None, False):
            raise ValueError(f"--{name} is for traces; {job.path} holds images; leave it out.")
    first = stored_row(index, job.path, trace=job.trace, sample=job.sample, question=job.question)
    last = first + 1 if job.sample is not None else min(first + MOST_PATCHES, len(index))
    rows = np.arange(first, last)
    keys, images = index.keys(rows), index.question_ids(rows)
    pixels = np.stack([StoredSample(index, int(row)).pixels() for row in rows])
    tiles = index.columns["trace"][rows].tolist() if "trace" in index.columns else [0] * len(rows)
    names = [f"{name[-22:]} {tile}" for name, tile in zip(images, tiles, strict=True)]
    shown = ShownPatches(names, pixels)
    if job.scores is not None:
        shown = _reconstructed(job.scores, shown, index)
    return Drawing(
        path=draw_patches(job.out or Path(f"view-{keys[0]}{_PICTURE}"), shown),
        trace=keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}",
        description=f"{len(keys)} patches of {', '.join(dict.fromkeys(images))}",
        layers=list(range(shown.patches.shape[1])),
        panels=["patches"] if job.scores is None else ["patches", "reconstructions", "errors"],
        notes=[],
    )


def _reconstructed(checkpoint: Path, shown: ShownPatches, index: DatasetIndex) -> ShownPatches:
    """Return the patches with a detector's reconstructions and errors."""
    import torch

    from wdsbench.detect.images import Reconstruction
    from wdsbench.errors import DetectorError
    from wdsbench.train.checkpoint import load_detector
    from wdsbench.train.fitted import StoredTraces
    from wdsbench.train.predict import find_checkpoint

    fitted = load_detector(find_checkpoint(checkpoint))
    module = fitted.module
    if not isinstance(module, Reconstruction):
        raise DetectorError(f"{fitted.spec.name} scores traces; pass a detector of images")
    fitted.require_traces(StoredTraces.of(index))
    channels = slice(None) if fitted.layers is None else list(fitted.layers)
    patches = shown.patches[:, channels]
    with torch.inference_mode():
        images = torch.from_numpy(np.ascontiguousarray(patches))
        again = module.reconstruct(images).float()
    return replace(
        shown,
        patches=patches,
        reconstructions=again.numpy(),
        errors=(images - again).square().mean(dim=1).numpy(),
        threshold=fitted.threshold,
    )


def _positions(wanted: Sequence[int] | None, names: Sequence[int]) -> list[int]:
    """Return the positions of layers with these numbers in the model; -1 is the last."""
    count = len(names)
    if wanted is None:
        return sorted({0, count // 2, count - 1})
    # An extraction with chosen layers lacks those between.
    stored = f"0 to {count - 1}" if names[-1] == count - 1 else ", ".join(map(str, names))
    positions = []
    for number in wanted:
        if number not in names and not -count <= number < 0:
            raise ValueError(
                f"--layers: {number} is not a layer; the trace has {stored} (-1 is the last)."
            )
        positions.append(names.index(number) if number in names else count + number)
    if not positions:
        raise ValueError(f"--layers is empty; the trace has {stored}.")
    return list(dict.fromkeys(positions))


def _check(
    viewed: ViewedTrace, panels: list[str], layers: list[int], head: int | None, *, scored: bool
) -> None:
    """Check that there is something to draw, with all requested layers and the head."""
    from wdsbench.view.figure import MOST_LAYERS

    if len(layers) > MOST_LAYERS:
        raise ValueError(
            f"--layers names {len(layers)} layers; at most {MOST_LAYERS} fit side by side (a page,"
            " --out page.html, has a slider over all)."
        )
    attention = [name for name in panels if name in ("graph", "heatmap")]
    drawn = viewed.has_attention or ("heatmap" in panels and viewed.sketch is not None)
    if attention and not drawn and not scored and len(attention) == len(panels):
        kind = "full" if "heatmap" in panels else "edges"
        raise viewed.error(f"no attention is stored that could be drawn; {viewed.remedy(kind)}")
    if head is None or not attention:
        return
    heads = viewed.num_heads
    if not heads:
        raise viewed.error(
            f"single heads are not stored; {viewed.remedy('heads')}, or full for whole maps"
        )
    if not 0 <= head < heads:
        raise ValueError(f"--head is {head}; the trace has heads 0 to {heads - 1}.")


def _scores(checkpoint: Path, viewed: ViewedTrace, index: DatasetIndex | None) -> TokenScores:
    from wdsbench.train.checkpoint import load_detector
    from wdsbench.train.fitted import StoredTraces
    from wdsbench.train.predict import find_checkpoint
    from wdsbench.train.sliding import slide

    features = viewed.hidden.shape[2]
    stored = (
        StoredTraces(viewed.num_layers, features, model_layers=viewed.model_layers)
        if index is None
        else StoredTraces.of(index)
    )
    return slide(
        load_detector(find_checkpoint(checkpoint)),
        viewed.hidden,
        tokens=viewed.num_tokens,
        prompt_length=viewed.prompt_length,
        stored=stored,
    )
