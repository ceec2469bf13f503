"""Layout ``pad``: samples filled up with zeros to the longest of the batch, ``[B, L, Tmax, D]``."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from wdsbench.loader.layouts.layout import BatchTensors, Placement
from wdsbench.loader.layouts.stack import StackLayout, even
from wdsbench.records import Batch


class PadLayout(StackLayout):
    """Samples of any length along a new first axis."""

    name = "pad"

    def check(self, rows: NDArray[np.int64]) -> None:
        """Accept all samples."""

    def shape(self, rows: NDArray[np.int64]) -> Placement:
        """Return ``[B, L, Tmax, D]``."""
        lengths = self.plan.ranges.count[rows]
        layers, features, padded = (
            self.plan.layers.size,
            self.plan.index.num_features,
            int(lengths.max(initial=0)),
        )
        targets, strides = even(rows.size, layers, padded * features)
        shape = (rows.size, layers, padded, features)
        return Placement(shape, targets, strides, lengths, padded=padded)

    def bytes(self, rows: NDArray[np.int64], batch_size: int) -> tuple[int, int]:
        """Return the bytes of a batch of samples as long as the longest."""
        longest = int(self.plan.ranges.count[rows].max(initial=0))
        return min(batch_size, rows.size) * longest * self.plan.token_bytes, 0

    def assemble(self, tensors: BatchTensors, batch: Batch) -> None:
        """Set ``hidden`` and ``lengths``."""
        super().assemble(tensors, batch)
        if tensors.values is not None:
            batch.lengths = torch.from_numpy(tensors.placement.lengths)
