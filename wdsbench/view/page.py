"""A trace as one self-contained HTML file with sliders for layer, head and threshold.

The file contains Plotly's library (4.8 MB) and the arrays, so it opens without a network; its
content security policy forbids requests. Tokens are untrusted text: they are JSON without ``<`` in
the page, text nodes in its document, and have ``<``, ``>``, ``&`` as entities in Plotly, which
parses some HTML. Arrays are base64 of little-endian bytes:

    weights  uint8, causal halves: round(254 sqrt(w)), 255 where nothing is kept
    sketch   uint8 [L, H, T, 4]: 254 equal steps from the smallest to the largest of each value,
             255 for NaN
    norms    float32 [L, t]

Beyond `MAP_BYTES` of weights a page keeps single heads of the chosen layers only, then of none,
then the mean of the chosen layers only; it says so.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import Colormap
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from wdsbench.files import write_whole
from wdsbench.records import TokenScores
from wdsbench.view.look import QUANTITIES, SIGNED, SKETCH_TITLES, WEIGHTS, norm_range
from wdsbench.view.trace import Selection, ViewedTrace, visible

#: Longer traces are not drawn by browsers in bearable time.
MOST_TOKENS = 1000
#: Weights on a page, in bytes before base64 (a third more).
MAP_BYTES = 24_000_000
STEPS = 254
NOT_KEPT = 255

# Edges per token at the initial threshold.
_EDGES_A_TOKEN = 2
# Places of the threshold's slider.
_PLACES = 100

_HOME = Path(__file__).parent


def write_page(path: Path, trace: ViewedTrace, shown: Selection) -> Path:
    """Write the page and return ``path``; ValueError if there are more tokens than `MOST_TOKENS`.

    The sliders start at the selected head and the middle one of the selected layers.
    """
    from plotly.offline import get_plotlyjs

    if trace.num_tokens > MOST_TOKENS:
        raise ValueError(
            f"{trace.num_tokens} tokens; a page shows at most {MOST_TOKENS}: draw a picture"
            " (--out trace.png)"
        )
    data = page_data(trace, shown)
    # As JSON inside HTML: no tag can begin, and no entity is read in a script element.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    parts = {
        "title": html.escape(f"{visible(trace.name)} - wdsbench view"),
        "style": _read("page.css"),
        "script": _read("page.js"),
        "data": text.replace("<", "\\u003c"),
        "plotly": get_plotlyjs(),
    }
    page = _read("page.html")
    pieces = []
    for name in ("title", "style", "data", "plotly", "script"):
        before, _, page = page.partition(f"{{{name}}}")
        pieces += [before, parts[name]]
    write_whole(path, "".join([*pieces, page]).encode("utf-8", "replace"))
    return path


def page_data(trace: ViewedTrace, shown: Selection) -> dict[str, Any]:
    """Return the input of the page's script as JSON values; see :func:`write_page`."""
    panels, layers, head, scores = shown.panels, shown.layers, shown.head, shown.scores
    attention = bool({"graph", "heatmap"} & set(panels))
    maps, notes = (None, [])
    if attention:
        notes = trace.remarks(head)
        if trace.has_attention:
            maps, about_maps = _maps(trace, layers)
            notes += about_maps
    sketch = trace.sketch if "heatmap" in panels else None
    if sketch is not None:
        notes.append("values of the sketch are kept in 254 equal steps of their range")
    start = layers[len(layers) // 2]
    return {
        "name": visible(trace.name),
        "described": trace.described,
        "texts": [visible(text) for text in trace.texts],
        "prompt": trace.prompt_length,
        "layers": trace.num_layers,
        "layerNames": list(trace.layer_names),
        "chosen": list(layers),
        "start": {
            "layer": start,
            "head": -1 if head is None else head,
            "threshold": _PLACES if maps is None else _start_threshold(trace, start, head),
        },
        "maps": maps,
        "absent": "This layer or head is not on the page, which would be too large; "
        + ("" if maps is None else _held(trace, maps)),
        "sketch": None if sketch is None else _sketch(sketch),
        "norms": _norms(trace) if "norms" in panels else None,
        "scores": None if scores is None else _scores(scores),
        "notes": notes,
        "weightColours": _colours(WEIGHTS),
        "quantityColours": _colours(QUANTITIES),
        "signedColours": _colours(SIGNED),
    }


def quantised(half: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return weights as codes: 254 steps of the square root, 255 for NaN."""
    root = np.sqrt(np.clip(np.nan_to_num(half), 0, 1))
    return np.where(np.isnan(half), NOT_KEPT, np.rint(root * STEPS)).astype(np.uint8)


def _maps(trace: ViewedTrace, layers: Sequence[int]) -> tuple[dict[str, Any], list[str]]:
    """Return the weights in a page, and notes about them."""
    every = list(range(trace.num_layers))
    mean_layers, head_layers, note = _fitting(trace, every, sorted(layers))
    heads = trace.num_heads if head_layers else 0
    mean = [quantised(trace.half(layer)) for layer in mean_layers]
    each = [quantised(trace.half(layer, head)) for layer in head_layers for head in range(heads)]
    size = sum(codes.size for codes in (*mean, *each))
    maps = {
        "numHeads": heads,
        "meanLayers": mean_layers,
        "headLayers": head_layers,
        "mean": _base64(mean),
        "heads": _base64(each),
    }
    notes = [
        "weights are kept in 254 steps of their square root: within 0.004 at 1, 0.0004 at 0.01",
        f"{size / 1e3:,.0f} kB of weights are on this page (as text a third more), beside 5 MB of"
        " Plotly",
    ]
    if not trace.num_heads:
        notes.append(f"single heads are not kept: {trace.remedy('heads')}, or full for whole maps")
    return maps, notes + note


def _fitting(
    trace: ViewedTrace, every: list[int], chosen: list[int]
) -> tuple[list[int], list[int], list[str]]:
    """Return the layers of the mean, those of single heads, and those left out."""
    size = trace.num_tokens * (trace.num_tokens + 1) // 2
    heads = trace.num_heads
    limit = f"to keep the page's weights within {MAP_BYTES / 1e6:g} MB"
    named = ", ".join(str(trace.layer_names[layer]) for layer in chosen)
    ladder = [
        (every, every if heads else [], []),
        (every, chosen, [f"single heads are here for layers {named} alone, {limit}"]),
        (every, [], [f"the mean over heads alone is here, {limit}: choose fewer --layers"]),
        (chosen, [], [f"only the mean over heads of layers {named} is here, {limit}"]),
    ]
    for mean_layers, head_layers, note in ladder:
        if size * (len(mean_layers) + heads * len(head_layers)) <= MAP_BYTES:
            return mean_layers, head_layers, note
    raise ValueError(
        f"{trace.num_tokens} tokens in layers {named}: more than {MAP_BYTES / 1e6:g} MB of weights;"
        " choose fewer --layers, or draw a picture (--out trace.png)"
    )


def _held(trace: ViewedTrace, maps: dict[str, Any]) -> str:
    heads = [trace.layer_names[layer] for layer in maps["headLayers"]]
    mean = f"the mean over heads is there for {len(maps['meanLayers'])} layers"
    return mean + (f", single heads for layers {', '.join(map(str, heads))}." if heads else ".")


def _start_threshold(trace: ViewedTrace, layer: int, head: int | None) -> int:
    """Return the slider's place at which about `_EDGES_A_TOKEN` edges a token are drawn."""
    target, source = np.tril_indices(trace.num_tokens)
    weight = np.nan_to_num(trace.half(layer, head))[source < target]
    wanted = _EDGES_A_TOKEN * trace.num_tokens
    least = 0.0 if weight.size <= wanted else float(np.sort(weight)[-wanted])
    return int(np.sqrt(min(max(least, 0.0), 1.0)) * _PLACES)


def _sketch(sketch: NDArray[np.float16]) -> dict[str, Any]:
    values = sketch.astype(np.float32)
    codes = np.full(values.shape, NOT_KEPT, np.uint8)
    ranges = []
    for number in range(values.shape[-1]):
        own = values[..., number]
        there = np.isfinite(own)
        low, high = (float(own[there].min()), float(own[there].max())) if there.any() else (0, 1)
        high = high if high > low else low + 1
        codes[..., number][there] = np.rint((own[there] - low) / (high - low) * STEPS)
        ranges.append([low, high])
    return {
        "heads": sketch.shape[1],
        "titles": list(SKETCH_TITLES.values()),
        "ranges": ranges,
        "values": _base64([codes]),
    }


def _norms(trace: ViewedTrace) -> dict[str, Any]:
    low, high, wide = norm_range(trace)
    ticks = list(LogLocator(subs=(1, 2, 5)).tick_values(low, high)) if wide else []
    return {
        "tokens": trace.state_tokens.tolist(),
        "wide": wide,
        "ticks": [float(tick) for tick in ticks if low <= tick <= high],
        "values": _base64([trace.norms]),
    }


def _scores(scores: TokenScores) -> dict[str, Any]:
    each = scores.by_layer
    return {
        "detector": scores.detector,
        "positions": scores.positions.tolist(),
        "values": scores.scores.tolist(),
        "threshold": scores.threshold,
        "layers": scores.layers.tolist(),
        "byLayer": None if each is None else each.tolist(),
        "byLayerTitle": scores.by_layer_title,
        "signed": scores.signed,
        "most": 1.0 if each is None else max(float(np.abs(each).max()), 1e-6),
        "remark": scores.remark,
    }


def _base64(arrays: Iterable[NDArray[Any]]) -> str:
    """Return the arrays' bytes, one after the other, little-endian."""
    parts = [np.ascontiguousarray(a, a.dtype.newbyteorder("<")).tobytes() for a in arrays]
    return base64.b64encode(b"".join(parts)).decode("ascii")


def _colours(colours: Colormap) -> list[list[int]]:
    """Return 17 colours, 0 to 255, at equal distances."""
    rgb = np.asarray(colours(np.linspace(0, 1, 17)))[:, :3]
    return np.rint(rgb * 255).astype(int).tolist()  # type: ignore[no-any-return]


def _read(name: str) -> str:
    return (_HOME / name).read_text(encoding="utf-8").rstrip("\n")
