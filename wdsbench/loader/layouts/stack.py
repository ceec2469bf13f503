"""Layout ``stack``: samples of equal length, ``[B, L, k, D]``, or ``[B, L, D]`` for one token."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import DecodeError
from wdsbench.loader.layouts.layout import BatchTensors, Layout, Placement
from wdsbench.records import Batch
from wdsbench.shards.format.kinds import HIDDEN


class StackLayout(Layout):
    """Equal samples along a new first axis."""

    name = "stack"

    def check(self, rows: NDArray[np.int64]) -> None:
        """Raise DecodeError for samples with unequal numbers of tokens."""
        counts = self.plan.ranges.count[rows]
        if counts.size and counts.min() != counts.max():
            raise DecodeError(
                f"layout='stack' with tokens={self.plan.tokens!r}: samples have {counts.min()} to"
                f" {counts.max()} tokens; use layout='pad' or 'jagged'",
                member=self.plan.index.member_name(int(rows[counts.argmin()]), HIDDEN),
            )

    def shape(self, rows: NDArray[np.int64]) -> Placement:
        """Return ``[B, L, k, D]``, without the axis k if one token was requested by name."""
        tokens = int(self.plan.ranges.count[rows[0]]) if rows.size else 0
        shape = (self.plan.layers.size, tokens, self.plan.index.num_features)
        return _stacked(rows.size, shape, self.plan.single)

    def assemble(self, tensors: BatchTensors, batch: Batch) -> None:
        """Set ``hidden``."""
        batch.hidden = tensors.values
        if tensors.scales is not None and batch.hidden is not None:
            ones = [1] * (batch.hidden.dim() - 2)
            batch.hidden_scale = tensors.scales.view(*tensors.scales.shape, *ones)


@lru_cache(maxsize=16)
def _stacked(size: int, shape: tuple[int, int, int], single: bool) -> Placement:
    """Return the placement of ``size`` equal samples; all batches but the last share it."""
    layers, tokens, features = shape
    targets, strides = even(size, layers, tokens * features)
    axes = (layers, features) if single else shape
    return Placement((size, *axes), targets, strides, np.full(size, tokens, np.int64))


def even(size: int, layers: int, stride: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (targets, strides) of samples of equal size."""
    return np.arange(size) * (layers * stride), np.full(size, stride)
