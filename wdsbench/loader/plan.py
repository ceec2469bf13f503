"""What every batch of a loader has in common, and where its samples lie in the batch's tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wdsbench.loader.select import TokenRanges
from wdsbench.shards.format.kinds import EDGES_WEIGHT, HEADS_WEIGHT, HIDDEN
from wdsbench.shards.read.index import DatasetIndex

#: Bytes of an edge in a batch: two int64 indices, then a float32 for each channel.
EDGE_INDEX_BYTES = 2 * 8
CHANNEL_BYTES = 4


@dataclass(frozen=True)
class DecodePlan:
    """What every batch of a loader has in common.

    Attributes:
        fields: Names asked for.
        layers: Wanted layers, int64.
        ranges: Wanted tokens of every row.
        layout: stack, pad, jagged, graph, union-graph, or separate (samples one after the other,
            each as it is).
        squeeze: One token was asked for: its axis is left out.
        threads: Decode threads; 0: whoever waits for the batch decodes it (worker processes).
        verify_hash: Check XXH3 of members that are read whole.
        raw: Hidden states stay in float16 as stored; the device widens them.
        heads: H (layout union-graph).
    """

    fields: tuple[str, ...]
    layers: NDArray[np.int64]
    ranges: TokenRanges
    layout: str
    squeeze: bool
    threads: int
    verify_hash: bool
    raw: bool = False
    heads: int = 0

    @property
    def has_edges(self) -> bool:
        """Whether batches are graphs."""
        return self.layout in ("graph", "union-graph")

    @property
    def has_states(self) -> bool:
        """Whether batches hold hidden states at all."""
        return self.has_edges or "hidden" in self.fields

    @property
    def edge_channels(self) -> int:
        """Numbers of an edge: one, or one for every wanted layer and head."""
        return self.layers.size * self.heads if self.layout == "union-graph" else 1


@dataclass(frozen=True)
class RowsLayout:
    """Where the hidden states of a batch's samples lie.

    Attributes:
        shape: Of the tensor.
        targets: int64 ``[B]``: element where each sample starts.
        strides: int64 ``[B]``: elements from one of its layers to the next.
        padded: Tokens of every layer, zeros behind a sample's own; 0: no padding.
        lengths: int64 ``[B]``: wanted tokens of each sample.
        offsets: int64 ``[B + 1]``: where its tokens start (jagged), or its nodes (graph), or None.
    """

    shape: tuple[int, ...]
    targets: NDArray[np.int64]
    strides: NDArray[np.int64]
    padded: int
    lengths: NDArray[np.int64]
    offsets: NDArray[np.int64] | None = None


def rows_layout(plan: DecodePlan, features: int, rows: NDArray[np.int64]) -> RowsLayout:
    """Return the layout of the batch of these rows; the same in every process."""
    if plan.layout == "stack":  # every sample has as many tokens
        tokens = int(plan.ranges.count[rows[0]]) if rows.size else 0
        return _stacked(plan.layers.size, features, rows.size, tokens, plan.squeeze)
    layers = plan.layers.size
    lengths = plan.ranges.count[rows]
    if plan.layout == "pad":
        padded = int(lengths.max(initial=0))
        shape = (rows.size, layers, padded, features)
        return RowsLayout(shape, *_even(rows.size, layers, padded * features), padded, lengths)
    if plan.layout == "graph":
        nodes = _starts(lengths * layers)
        targets, strides = nodes[:-1] * features, lengths * features
        return RowsLayout((int(nodes[-1]), features), targets, strides, 0, lengths, nodes)
    if plan.layout == "separate":
        sizes = _starts(lengths * (layers * features))
        return RowsLayout((int(sizes[-1]),), sizes[:-1], lengths * features, 0, lengths)
    starts = _starts(lengths)
    total = int(starts[-1])
    strides = np.full(rows.size, total * features)
    return RowsLayout(
        (layers, total, features), starts[:-1] * features, strides, 0, lengths, starts
    )


@lru_cache(maxsize=16)
def _stacked(layers: int, features: int, size: int, tokens: int, squeeze: bool) -> RowsLayout:
    """Return the layout of ``size`` equal samples: of all batches of a loader but the last."""
    shape = (size, layers, features) if squeeze else (size, layers, tokens, features)
    return RowsLayout(
        shape, *_even(size, layers, tokens * features), 0, np.full(size, tokens, np.int64)
    )


def _even(size: int, layers: int, stride: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (targets, strides) of samples of equal size."""
    return np.arange(size) * (layers * stride), np.full(size, stride)


def batch_bytes(
    plan: DecodePlan, index: DatasetIndex, rows: NDArray[np.int64], batch_size: int
) -> tuple[int, int]:
    """Return the bytes that (hidden states, edges) of the largest possible batch of ``rows`` take
    as they are decoded.
    """
    if not plan.has_states or not rows.size:
        return 0, 0
    size = min(batch_size, rows.size)
    token_bytes = plan.layers.size * index.num_features * (2 if plan.raw else 4)
    counts = plan.ranges.count[rows]
    if plan.layout in ("stack", "pad"):
        return size * int(counts.max()) * token_bytes, 0
    states = _sum_of_largest(counts, size) * token_bytes
    if not plan.has_edges:
        return states, 0
    member = HEADS_WEIGHT if plan.layout == "union-graph" else EDGES_WEIGHT
    edges = index.member(member, "size")[rows].astype(np.int64) // 2
    if plan.layout == "union-graph":  # a pair of tokens is one edge, however many heads have it
        edges = np.minimum(edges, counts * (counts - 1) // 2)
    return states, _sum_of_largest(edges, size) * (
        EDGE_INDEX_BYTES + CHANNEL_BYTES * plan.edge_channels
    )


def is_sparse(plan: DecodePlan, index: DatasetIndex, rows: NDArray[np.int64]) -> bool:
    """Return whether less than half of the hidden states' bytes are wanted."""
    if not rows.size:
        return False
    stored = int(index.member(HIDDEN, "size")[rows].sum())
    tokens = int(plan.ranges.count[rows].sum())
    return 2 * tokens * plan.layers.size * index.num_features * element_bytes(index) < stored


def element_bytes(index: DatasetIndex) -> int:
    """Return the bytes of one stored element of the hidden states."""
    return np.dtype(index.fields["hidden"].dtype).itemsize


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    starts = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def _sum_of_largest(values: NDArray[np.int64], count: int) -> int:
    return int(np.partition(values, values.size - count)[values.size - count :].sum())
