"""Layout ``union-graph``: one graph per sample, with an edge wherever some head attends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.errors import DecodeError
from wdsbench.loader.layouts.edges import EdgeLayout, graph_batch
from wdsbench.loader.layouts.jagged import JaggedLayout
from wdsbench.loader.layouts.layout import BatchTensors, EdgeJobs, Placement
from wdsbench.records import Batch
from wdsbench.shards.format.kinds import KINDS


class HeadJobs(EdgeJobs):
    """Edges of all requested layers and heads, joined."""

    members = KINDS["heads"].required
    columns = _core.HEADS_COLUMNS

    def counts(self, files: _core.ShardFiles) -> NDArray[np.int64]:
        """Return int64 ``[B, 1]``."""
        index = self.plan.index
        counts = _core.count_union_edges(
            files,
            self.jobs,
            self.plan.layers,
            layers_stored=index.num_layers,
            heads=index.num_heads,
            threads=self.threads,
        )
        return counts[:, None]

    def collate(
        self, files: _core.ShardFiles, index: NDArray[np.int64], attr: NDArray[np.float32]
    ) -> None:
        """Write the edges of all samples."""
        _core.collate_union(
            files,
            self.jobs,
            self.plan.layers,
            layers_stored=self.plan.index.num_layers,
            heads=self.plan.index.num_heads,
            edge_index=index,
            edge_attr=attr,
            threads=self.threads,
        )


class UnionGraphLayout(EdgeLayout, JaggedLayout):
    """B graphs; an edge has a number for each layer and head."""

    name, kind, table = "union-graph", "heads", HeadJobs

    def check(self, rows: NDArray[np.int64]) -> None:
        """Raise DecodeError for samples without per-head edges or prompt length."""
        super().check(rows)
        index = self.plan.index
        if not index.num_heads:
            raise DecodeError(
                "layout='union-graph' is not available: tar files without an index do not record"
                " the number of heads; pack again"
            )
        unknown = rows[index.columns["prompt_length"][rows] < 0]
        if unknown.size:
            raise DecodeError(
                f"layout='union-graph' is not available: {unknown.size} samples have no prompt"
                " length, and edges within the prompt are left out",
                member=index.member_name(int(unknown[0]), self.table.members[0]),
            )

    def shape(self, rows: NDArray[np.int64]) -> Placement:
        """Return ``[L, N, D]``, decoded layer by layer; offsets are nodes."""
        channels = self.plan.layers.size * self.plan.index.num_heads
        return replace(JaggedLayout.shape(self, rows), edge_channels=channels)

    def most_edges(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the largest possible number of edges: two tokens share one at most."""
        counts = self.plan.ranges.count[rows]
        most: NDArray[np.int64] = np.minimum(super().most_edges(rows), counts * (counts - 1) // 2)
        return most

    def assemble(self, tensors: BatchTensors, batch: Batch) -> None:
        """Set ``graph``; a node has the states of all layers, ``[N, L, D]``."""
        assert tensors.values is not None
        x, nodes = tensors.values.permute(1, 0, 2), tensors.placement.lengths
        batch.graph = graph_batch(tensors, x, nodes)
        if tensors.scales is not None:
            scales = tensors.scales.repeat_interleave(batch.graph.ptr.diff(), dim=0)
            batch.hidden_scale = scales[:, :, None]
