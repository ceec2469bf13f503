"""Edges and PyG batches, for the layouts ``graph`` and ``union-graph``."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from wdsbench.loader.layouts.layout import (
    BatchTensors,
    EdgeJobs,
    Layout,
    Placement,
    starts_of,
    sum_of_largest,
)
from wdsbench.loader.plan import require_kind
from wdsbench.shards.format.kinds import KINDS

#: Bytes of an edge in a batch: two int64 indices and a float32 per channel.
EDGE_INDEX_BYTES = 2 * 8
CHANNEL_BYTES = 4
WEIGHT_BYTES = 2


class EdgeLayout(Layout):
    """Batches of graphs over all tokens, with edges of the member kind ``kind``."""

    tokens = "all"
    kind: ClassVar[str]
    table: ClassVar[type[EdgeJobs]]

    def check(self, rows: NDArray[np.int64]) -> None:
        """Raise DecodeError for samples without the edges."""
        require_kind(self.plan.index, rows, self.kind, f"layout={self.name!r}")

    def bytes(self, rows: NDArray[np.int64], batch_size: int) -> tuple[int, int]:
        """Return the bytes of states and edges."""
        states, _ = super().bytes(rows, batch_size)
        channels = self.shape(rows[:0]).edge_channels
        edges = sum_of_largest(self.most_edges(rows), batch_size)
        return states, edges * (EDGE_INDEX_BYTES + CHANNEL_BYTES * channels)

    def most_edges(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the largest possible number of edges of each sample, from the member's size."""
        sizes = self.plan.index.member(KINDS[self.kind].main, "size")[rows]
        return sizes.astype(np.int64) // WEIGHT_BYTES

    def jobs(self, rows: NDArray[np.int64], placement: Placement) -> EdgeJobs:
        """Return the decode jobs of the edges."""
        return self.table(self.plan, rows, placement)


def graph_batch(tensors: BatchTensors, x: torch.Tensor, node_counts: NDArray[np.int64]) -> Any:
    """Return G graphs as a ``torch_geometric.data.Batch``, without a Python object per graph.

    ``x`` is float32 ``[N, ...]``, ``node_counts`` int64 ``[G]``; edge indices count all N nodes.
    PyG's ``separate`` undoes the collation by ``_slice_dict``, the start of each graph's entries,
    and ``_inc_dict``, the number that was added to its indices.
    """
    from torch_geometric.data import Batch, Data

    assert tensors.edge_counts is not None
    nodes = torch.from_numpy(starts_of(node_counts))
    edges = torch.from_numpy(starts_of(tensors.edge_counts))
    graphs = len(node_counts)
    batch = Batch(
        _base_cls=Data,
        x=x,
        edge_index=tensors.edge_index,
        edge_attr=tensors.edge_attr,
        batch=torch.from_numpy(np.repeat(np.arange(graphs), node_counts)),
        ptr=nodes,
    )
    batch._num_graphs = graphs
    batch._slice_dict = {"x": nodes, "edge_index": edges, "edge_attr": edges}
    none = torch.zeros(graphs, dtype=torch.int64)
    batch._inc_dict = {"x": none, "edge_index": nodes[:-1], "edge_attr": none}
    return batch
