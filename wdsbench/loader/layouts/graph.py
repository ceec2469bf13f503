"""Layout ``graph``: one graph per sample and layer, with the edges of the mean over heads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.loader.layouts.edges import EdgeLayout, graph_batch
from wdsbench.loader.layouts.layout import BatchTensors, EdgeJobs, Placement, starts_of
from wdsbench.records import Batch
from wdsbench.shards.format.kinds import KINDS


class LayerJobs(EdgeJobs):
    """Edges of each requested layer."""

    members = KINDS["edges"].required
    columns = _core.EDGES_COLUMNS

    def counts(self, files: _core.ShardFiles) -> NDArray[np.int64]:
        """Return int64 ``[B, layers]``."""
        layers = self.plan.layers
        self.pointers = _core.read_edge_pointers(
            files, self.jobs, layers_stored=self.plan.index.num_layers, threads=self.threads
        )
        return (self.pointers[:, layers + 1] - self.pointers[:, layers]).astype(np.int64)

    def collate(
        self, files: _core.ShardFiles, index: NDArray[np.int64], attr: NDArray[np.float32]
    ) -> None:
        """Write the edges of all samples and layers."""
        _core.collate_edges(
            files,
            self.jobs,
            self.plan.layers,
            pointers=self.pointers,
            edge_index=index,
            edge_attr=attr.reshape(-1),
            threads=self.threads,
        )


class GraphLayout(EdgeLayout):
    """B * L graphs; graph = sample * L + layer."""

    name, kind, table = "graph", "edges", LayerJobs

    def shape(self, rows: NDArray[np.int64]) -> Placement:
        """Return ``[N, D]``; offsets are nodes."""
        lengths, features = self.plan.ranges.count[rows], self.plan.index.num_features
        nodes = starts_of(lengths * self.plan.layers.size)
        return Placement(
            (int(nodes[-1]), features),
            nodes[:-1] * features,
            lengths * features,
            lengths,
            nodes,
            edge_channels=1,
        )

    def assemble(self, tensors: BatchTensors, batch: Batch) -> None:
        """Set ``graph``."""
        assert tensors.values is not None
        nodes = np.repeat(tensors.placement.lengths, self.plan.layers.size)
        batch.graph = graph_batch(tensors, tensors.values, nodes)
        if tensors.scales is not None:
            scales = tensors.scales.reshape(-1).repeat_interleave(batch.graph.ptr.diff())
            batch.hidden_scale = scales[:, None]
