"""The parts that ``graph`` and ``union-graph`` share."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wdsbench.loader.layouts.layout import EdgeJobs, Layout, Placement, sum_of_largest
from wdsbench.loader.tokens import require_kind
from wdsbench.shards.format.kinds import KINDS

#: Bytes of an edge in a batch: two int64 indices and a float32 per channel.
EDGE_INDEX_BYTES = 2 * 8
CHANNEL_BYTES = 4
WEIGHT_BYTES = 2


class EdgeLayout(Layout):
    """Batches of graphs over all tokens.

    Attributes:
        kind: Member kind of the edges.
        table: Job table of a batch.
    """

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
