"""Layout ``jagged``: samples one after the other on the token axis, ``[L, sum T, D]``."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from wdsbench.loader.layouts.layout import BatchTensors, Layout, Placement, starts_of
from wdsbench.records import Batch


class JaggedLayout(Layout):
    """Samples of any length, layer by layer, without padding."""

    name = "jagged"

    def shape(self, rows: NDArray[np.int64]) -> Placement:
        """Return ``[L, sum T, D]``; offsets are tokens."""
        lengths, features = self.plan.ranges.count[rows], self.plan.index.num_features
        starts = starts_of(lengths)
        total = int(starts[-1])
        return Placement(
            (self.plan.layers.size, total, features),
            starts[:-1] * features,
            np.full(rows.size, total * features),
            lengths,
            starts,
        )

    def assemble(self, tensors: BatchTensors, batch: Batch) -> None:
        """Set ``hidden``, ``lengths`` and ``offsets``."""
        placement = tensors.placement
        if tensors.values is None or placement.offsets is None:
            return
        batch.hidden = tensors.values
        batch.lengths = torch.from_numpy(placement.lengths)
        batch.offsets = torch.from_numpy(placement.offsets)
        if tensors.scales is not None:
            scales = tensors.scales.T.repeat_interleave(batch.lengths, dim=1)
            batch.hidden_scale = scales[:, :, None]
