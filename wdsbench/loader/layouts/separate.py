"""Layout of ``TraceDataset``: each sample a block ``[L, T, D]`` of its own, one after the other."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from wdsbench.loader.layouts.layout import BatchTensors, Layout, Placement, starts_of
from wdsbench.records import Batch


class SeparateLayout(Layout):
    """Samples in one flat block of memory."""

    name = "separate"

    def shape(self, rows: NDArray[np.int64]) -> Placement:
        """Return the number of elements."""
        lengths, features = self.plan.ranges.count[rows], self.plan.index.num_features
        starts = starts_of(lengths * (self.plan.layers.size * features))
        return Placement((int(starts[-1]),), starts[:-1], lengths * features, lengths)

    def assemble(self, tensors: BatchTensors, batch: Batch) -> None:
        """Set nothing; see :meth:`samples`."""

    def samples(self, tensors: BatchTensors) -> list[torch.Tensor]:
        """Return the states of every sample, ``[L, T, D]`` or, of one token, ``[L, D]``."""
        if tensors.hidden is None:
            return []
        placement, layers = tensors.placement, self.plan.layers.size
        sizes = (placement.strides * layers).tolist()
        blocks = [
            block.view(layers, length, self.plan.index.num_features)
            for block, length in zip(
                torch.split(tensors.hidden, sizes), placement.lengths.tolist(), strict=True
            )
        ]
        return [block[:, 0] for block in blocks] if self.plan.single else blocks
