"""Layout ``image``: image patches along a new first axis, ``[B, C, P, P]``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wdsbench.loader.layouts.layout import BatchTensors, Layout, Placement
from wdsbench.loader.layouts.stack import even
from wdsbench.records import Batch


class ImageLayout(Layout):
    """Patches of equal size; the argument ``layers`` selects channels."""

    name, tokens, tensor = "image", "all", "image"

    def shape(self, rows: NDArray[np.int64]) -> Placement:
        """Return ``[B, C, P, P]``."""
        channels, pixels = self.plan.layers.size, self.plan.index.num_features
        targets, strides = even(rows.size, channels, pixels * pixels)
        shape = (rows.size, channels, pixels, pixels)
        return Placement(shape, targets, strides, np.full(rows.size, pixels, np.int64))

    def assemble(self, tensors: BatchTensors, batch: Batch) -> None:
        """Set ``image``, and ``image_range`` if a device normalises."""
        batch.image, batch.image_range = tensors.values, tensors.scales
