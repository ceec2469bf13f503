"""Preprocessed graphs: n lists of L PyG ``Data``, without PyG.

``torch.load(weights_only=True)`` receives empty classes of ours under the names of exactly the
classes that a ``Data`` is pickled with; nothing of PyG is imported or run. ``x`` ``[T, D]`` of a
graph becomes the layer's states, and ``edge_index`` ``[2, E]`` with ``edge_attr`` ``[E]`` or ``[E,
1]`` its attention edges j -> i (token i attends to j < i).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.records import EdgeLists
from wdsbench.traces.arrays import as_array, is_tensor
from wdsbench.traces.attention import join_edges

REMARK_SELF_LOOPS: Final = "dropped self-loops of graphs"
REMARK_TURNED: Final = "turned edges of graphs around, to run from the earlier token to the later"
REMARK_ATTRIBUTES: Final = "dropped attributes of graphs other than x, edge_index, edge_attr"

_READ: Final = ("x", "edge_index", "edge_attr")


class _PlainObject:
    """Holds the attributes of a pickled PyG object, without behaviour."""

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update({str(key): value for key, value in state.items()})


#: (class, the name that a pickle has for it), for ``torch.serialization.add_safe_globals``.
SAFE_GLOBALS: Final = [
    (type(name, (_PlainObject,), {}), f"torch_geometric.data.{module}.{name}")
    for module, name in (
        ("data", "Data"),
        ("data", "DataEdgeAttr"),
        ("data", "DataTensorAttr"),
        ("storage", "GlobalStorage"),
    )
]


def read_graphs(graphs: object) -> tuple[list[NDArray[Any]], EdgeLists, tuple[str, ...]]:
    """Return the L states ``[T, D]`` and L lists of edges of a trace's L graphs, and remarks.

    Raises:
        ValueError: A part is missing, or has a wrong type, shape, dtype or range.
    """
    if not isinstance(graphs, list | tuple) or not graphs:
        raise ValueError(
            f"graphs of a trace are a {type(graphs).__name__}; expected a list of one Data per"
            " layer."
        )
    remarks: dict[str, None] = {}
    states, parts = [], []
    for layer, graph in enumerate(graphs):
        try:
            values = _values(graph)
            if set(values) - set(_READ):
                remarks[REMARK_ATTRIBUTES] = None
            states.append(_array(values, "x", 2, "f"))
            parts.append(_edges(values, len(states[-1]), remarks))
        except ValueError as error:
            raise ValueError(f"graph of layer {layer}: {error}.") from error
    sizes = sorted({layer.shape for layer in states})
    if len(sizes) > 1:
        raise ValueError(
            f"graphs differ in the shape of x from layer to layer: {', '.join(map(str, sizes))};"
            " save the same tokens for every layer."
        )
    return states, join_edges(parts), tuple(remarks)


def _values(graph: object) -> dict[str, Any]:
    if type(graph).__name__ != "Data":
        raise ValueError(f"is a {type(graph).__name__}; expected torch_geometric.data.Data")
    attributes = getattr(graph, "__dict__", {})
    store = getattr(attributes.get("_store"), "__dict__", {})
    values = store.get("_mapping") if "_store" in attributes else attributes  # PyG 1: no stores
    if not isinstance(values, Mapping):
        raise ValueError("holds no attributes; save it again with torch.save")
    return {
        str(key): value
        for key, value in values.items()
        if value is not None and not str(key).startswith("_")
    }


def _array(values: Mapping[str, Any], name: str, axes: int, kinds: str) -> NDArray[Any]:
    value = values.get(name)
    if not is_tensor(value) and not isinstance(value, np.ndarray):
        raise ValueError(f"{name} is {'missing' if value is None else type(value).__name__}")
    array = as_array(value)
    if name == "edge_attr" and array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != axes or array.dtype.kind not in kinds:
        raise ValueError(
            f"{name} has dtype {array.dtype} and shape {array.shape}; expected"
            f" {'floats' if kinds == 'f' else 'integers'} of {axes} axes"
        )
    return array


def _edges(values: Mapping[str, Any], tokens: int, remarks: dict[str, None]) -> EdgeLists:
    index = _array(values, "edge_index", 2, "iu")
    weight = _array(values, "edge_attr", 1, "f")
    if index.shape != (2, weight.size):
        raise ValueError(
            f"edge_index has shape {index.shape} and edge_attr {weight.size} values; expected"
            " [2, E] and [E] or [E, 1] with the same E"
        )
    if index.size and not (index.min() >= 0 and index.max() < tokens):
        found = f"{index.min()} to {index.max()}"
        raise ValueError(f"edge_index is {found}; expected 0 .. {tokens - 1}")
    if not bool(((weight >= 0) & (weight <= _core.WEIGHT_MAX)).all()):  # NaN compares false
        raise ValueError(f"edge_attr is {weight.min()} to {weight.max()}; attention is 0 to 1")
    loops = index[0] == index[1]
    if loops.any():
        remarks[REMARK_SELF_LOOPS] = None
        index, weight = index[:, ~loops], weight[~loops]
    # In a causal model only the later token can attend, however the edge was written.
    source, target = index.min(axis=0), index.max(axis=0)
    if bool((source != index[0]).any()):
        remarks[REMARK_TURNED] = None
    order = np.lexsort((source, target))
    source, target = source[order], target[order]
    twice = (source[1:] == source[:-1]) & (target[1:] == target[:-1])
    if twice.any():
        place = int(twice.argmax())
        raise ValueError(
            f"tokens {source[place]} and {target[place]} have two edges; expected one, from the"
            " earlier token to the later one, which attends to it"
        )
    return EdgeLists(
        np.stack([source, target]).astype(np.min_scalar_type(max(tokens - 1, 0))),
        np.ascontiguousarray(weight[order]).astype(np.float16),
        np.array([0, weight.size], np.uint32),
    )
