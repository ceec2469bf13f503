"""The raw trace's key ``reduced_attention``: reduced attention maps as plain values.

The arrays are the same as in a shard's members (``docs/format.md``); ``num_heads`` is required, the
text ``edge_rule`` with edges, and the number ``head_threshold`` with heads.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.errors import first_line
from wdsbench.records import EdgeLists, ReducedAttention
from wdsbench.traces.arrays import as_array, shown
from wdsbench.traces.attention import EdgeRule

#: Values per token in a sketch, and the one that is NaN outside the answer
#: (csrc/graph/sketch.hpp).
_SKETCH_VALUES: Final = 4
_LOOKBACK: Final = 2


def reduced_to_raw(reduced: ReducedAttention) -> dict[str, Any]:
    """Return the raw trace's dict; the inverse of :func:`reduced_from_raw`."""
    raw: dict[str, Any] = {"num_heads": reduced.num_heads}
    for kind, edges in (("edges", reduced.edges), ("heads", reduced.heads)):
        if edges is not None:
            raw[f"{kind}_index"] = edges.index
            raw[f"{kind}_weight"] = edges.weight
            raw[f"{kind}_ptr"] = edges.pointer
    if reduced.edges is not None:
        raw["edge_rule"] = reduced.edge_rule
    if reduced.heads is not None:
        raw["head_threshold"] = reduced.head_threshold
    if reduced.sketch is not None:
        raw["sketch"] = reduced.sketch
    return raw


def reduced_from_raw(raw: object, tokens: int) -> ReducedAttention:
    """Return the checked value of ``reduced_attention`` of a trace of ``tokens`` tokens.

    Raises:
        ValueError: A value is missing or has the wrong type, dtype, shape or range.
    """
    if not isinstance(raw, Mapping):
        raise ValueError(f"is a {type(raw).__name__}; expected a dict")
    num_heads = _num_heads(raw)
    edges = _edge_lists(raw, "edges", 0, tokens)
    heads = _edge_lists(raw, "heads", num_heads, tokens)
    sketch = _sketch(raw, num_heads, tokens)
    layers: dict[str, int] = {}
    if edges is not None:
        layers["edges"] = len(edges.pointer) - 1
    if heads is not None:
        layers["heads"] = (len(heads.pointer) - 1) // num_heads
    if sketch is not None:
        layers["sketch"] = len(sketch)
    if not layers:
        raise ValueError(
            "holds none of edges_index, heads_index, sketch; save one, or omit the key"
        )
    if len(set(layers.values())) > 1:
        found = ", ".join(f"{kind} of {count} layers" for kind, count in layers.items())
        raise ValueError(f"holds {found}; expected the same number: extract this trace again")
    return ReducedAttention(
        num_layers=next(iter(layers.values())),
        num_heads=num_heads,
        edges=edges,
        edge_rule=None if edges is None else _edge_rule(raw),
        heads=heads,
        head_threshold=None if heads is None else _head_threshold(raw),
        sketch=sketch,
    )


def _num_heads(raw: Mapping[str, Any]) -> int:
    value = raw.get("num_heads")
    try:
        number = 0 if isinstance(value, bool | np.bool_) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"num_heads is {shown(value)}; expected an integer of at least 1")
    return number


def _edge_rule(raw: Mapping[str, Any]) -> str:
    value = raw.get("edge_rule")
    if not isinstance(value, str):
        raise ValueError(
            f"edge_rule of edges is {shown(value)}; expected the text top:SHARE or"
            " threshold:WEIGHT that selected them"
        )
    EdgeRule.parse(value)
    return value


def _head_threshold(raw: Mapping[str, Any]) -> float:
    value = raw.get("head_threshold")
    if isinstance(value, int | float | np.integer | np.floating) and 0.0 <= value <= 1.0:
        return float(value)
    raise ValueError(
        f"head_threshold of heads is {shown(value)}; expected the number within 0..1 that"
        " selected them"
    )


def _sketch(raw: Mapping[str, Any], num_heads: int, tokens: int) -> NDArray[np.float16] | None:
    if raw.get("sketch") is None:
        return None
    values = _native("sketch", raw["sketch"])
    if values.dtype != np.float16:
        raise ValueError(f"sketch has dtype {values.dtype}; expected float16")
    wanted = (num_heads, tokens, _SKETCH_VALUES)
    if values.ndim != 4 or values.shape[1:] != wanted or not len(values):
        raise ValueError(
            f"sketch has shape {values.shape}; expected [layers, {num_heads}, {tokens},"
            f" {_SKETCH_VALUES}] for {num_heads} heads and {tokens} tokens"
        )
    bad = ~np.isfinite(values)
    bad[..., _LOOKBACK] = np.isinf(values[..., _LOOKBACK])
    if bad.any():
        layer, head, token, _ = (int(place[0]) for place in np.nonzero(bad))
        raise ValueError(
            f"layer {layer}: the sketch of head {head}, token {token} is"
            f" {values[layer, head, token].tolist()}; expected finite numbers (NaN only for the"
            " third, lookback): extract this trace again"
        )
    return values


def _edge_lists(raw: Mapping[str, Any], kind: str, heads: int, tokens: int) -> EdgeLists | None:
    names = [f"{kind}_index", f"{kind}_weight", f"{kind}_ptr"]
    missing = [name for name in names if raw.get(name) is None]
    if len(missing) == len(names):
        return None
    if missing:
        raise ValueError(
            f"lacks {', '.join(missing)}; expected all of {', '.join(names)}: extract this trace"
            " again"
        )
    index, weight, pointer = (_native(name, raw[name]) for name in names)
    layers, rest = divmod(pointer.size - 1, heads or 1)
    if pointer.ndim != 1 or layers < 1 or rest:
        axis = f"layers * {heads} + 1" if heads else "layers + 1"
        raise ValueError(f"{names[2]} has shape {pointer.shape}; expected [{axis}]")
    try:
        _core.check_edge_lists(index, weight, pointer, tokens=tokens, layers=layers, heads=heads)
    except _core.FormatError as error:
        raise ValueError(f"{error.member}: {error.detail}: extract this trace again") from error
    return EdgeLists(index, weight, pointer)


def _native(name: str, value: object) -> NDArray[Any]:
    """Return ``value`` as a C-ordered array in native byte order."""
    try:
        array = as_array(value)
    except ValueError as error:
        raise ValueError(f"{name} cannot be read as one array: {first_line(error)}") from error
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
