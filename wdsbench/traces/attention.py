"""Reduction of attention maps: edges of their mean, edges of every head, sketches.

``pack`` reduces all layers of a raw trace at once, ``llm`` each layer of a running model. Both use
these functions, so their values are identical bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.records import EdgeLists, ReducedAttention

ATTENTION_KINDS: Final = ("full", "edges", "heads", "sketch")
EDGE_RULE: Final = "top:0.35"
HEAD_THRESHOLD: Final = 0.05

_POINTER_MAX: Final = 2**32 - 1


class MapError(ValueError):
    """A map does not hold attention probabilities."""


@dataclass(frozen=True)
class EdgeRule:
    """The edges kept among a token's predecessors: ``top:0.35``, that share of them;
    ``threshold:0.01``, those of at least that weight.
    """

    kind: str
    value: float

    @classmethod
    def parse(cls, text: str) -> EdgeRule:
        """Return the rule; raise ValueError if the text is not one."""
        kind, _, value = text.partition(":")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if kind not in ("top", "threshold") or not 0.0 <= number <= 1.0:
            raise ValueError(f"edge rule {text!r} is not top:SHARE or threshold:WEIGHT within 0..1")
        return cls(kind, number)


@dataclass(frozen=True)
class AttentionRules:
    """Kinds of attention to keep (a subset of ``ATTENTION_KINDS``), the rule of edges, and the
    least weight of a per-head edge.
    """

    kinds: tuple[str, ...]
    edge_rule: str = EDGE_RULE
    head_threshold: float = HEAD_THRESHOLD

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in ATTENTION_KINDS:
                raise ValueError(
                    f"attention: {kind!r} is not one of {', '.join(ATTENTION_KINDS)}, none"
                )
        if not 0.0 <= self.head_threshold <= 1.0:
            raise ValueError(f"head_threshold: {self.head_threshold} is not within 0..1")
        EdgeRule.parse(self.edge_rule)

    @property
    def reduces(self) -> bool:
        """True if any kind except the maps themselves is kept."""
        return bool(set(self.kinds) - {"full"})


def as_maps(attentions: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return maps ``[H, T, T]`` as the C++ functions need them: C order, float16 or float32."""
    return [
        np.ascontiguousarray(layer, np.float16 if layer.dtype == np.float16 else np.float32)
        for layer in attentions
    ]


def reduce_maps(
    maps: list[NDArray[Any]],
    rules: AttentionRules,
    *,
    prompt_length: int | None,
    threads: int = 1,
    first_layer: int = 0,
) -> ReducedAttention:
    """Return the reductions of one trace's maps (from :func:`as_maps`); ``full`` is ignored.

    ``prompt_length``, for the sketch's lookback ratio, is None if unknown; ``threads`` layers are
    reduced at a time; ``first_layer`` is the number of ``maps[0]`` in errors.

    Raises:
        MapError: A weight is not finite, or not a probability.
    """
    heads, tokens = maps[0].shape[:2]
    sizes = {"tokens": tokens, "layers": len(maps), "first_layer": first_layer}
    edges = head_edges = sketch = None
    try:
        if "edges" in rules.kinds:
            rule = EdgeRule.parse(rules.edge_rule)
            found = _core.mean_edges(maps, rule.kind, rule.value, threads=threads)
            edges = _checked(found, {**sizes, "heads": 0})
        if "heads" in rules.kinds:
            found = _core.head_edges(maps, rules.head_threshold, threads=threads)
            head_edges = _checked(found, {**sizes, "heads": heads})
        if "sketch" in rules.kinds:
            values = _core.sketch(maps, prompt_length=prompt_length, threads=threads)
            sketch = values.astype(np.float16)
    except _core.FormatError as error:
        layer = first_layer + (error.sample or 0)
        raise MapError(f"layer {layer}: {error.detail}") from error
    return ReducedAttention(
        num_layers=len(maps),
        num_heads=heads,
        edges=edges,
        edge_rule=None if edges is None else rules.edge_rule,
        heads=head_edges,
        head_threshold=None if head_edges is None else rules.head_threshold,
        sketch=sketch,
    )


def join_layers(parts: Sequence[ReducedAttention]) -> ReducedAttention:
    """Return the parts of one trace, reduced by the same rules, joined along the layers.

    Raises:
        MapError: Parts differ in heads, or have more edges than a pointer can count.
    """
    first = parts[0]
    counts = sorted({part.num_heads for part in parts})
    if len(counts) > 1:
        raise MapError(f"layers have {' and '.join(map(str, counts))} heads; expected one number")
    edges = [part.edges for part in parts if part.edges is not None]
    heads = [part.heads for part in parts if part.heads is not None]
    sketches = [part.sketch for part in parts if part.sketch is not None]
    return ReducedAttention(
        num_layers=sum(part.num_layers for part in parts),
        num_heads=first.num_heads,
        edges=join_edges(edges) if edges else None,
        edge_rule=first.edge_rule,
        heads=join_edges(heads) if heads else None,
        head_threshold=first.head_threshold,
        sketch=np.concatenate(sketches) if sketches else None,
    )


def _checked(
    found: tuple[NDArray[np.uint32], NDArray[np.uint16], NDArray[np.uint32]], sizes: dict[str, int]
) -> EdgeLists:
    """Return a result of C++, with indices in the narrowest type; raise MapError if its weights are
    not attention probabilities.
    """
    index, bits, pointer = found
    narrow = index.astype(np.min_scalar_type(max(sizes["tokens"] - 1, 0)))
    edges = EdgeLists(narrow, bits.view(np.float16), pointer)
    try:
        _core.check_edge_lists(edges.index, edges.weight, edges.pointer, **sizes)
    except _core.FormatError as error:
        detail = f"{error.detail}; save the attention probabilities, not the scores"
        raise MapError(detail) from error
    return edges


def join_edges(parts: Sequence[EdgeLists]) -> EdgeLists:
    """Return the lists of all parts; raise MapError if a pointer cannot count their edges."""
    counts = np.concatenate([np.diff(part.pointer.astype(np.int64)) for part in parts])
    pointer = np.concatenate([[0], np.cumsum(counts)])
    if pointer[-1] > _POINTER_MAX:
        raise MapError(
            f"one trace has {pointer[-1]} edges; the limit is {_POINTER_MAX}: keep fewer with"
            " --edge-rule or --head-threshold"
        )
    return EdgeLists(
        np.concatenate([part.index for part in parts], axis=1),
        np.concatenate([part.weight for part in parts]),
        pointer.astype(np.uint32),
    )
