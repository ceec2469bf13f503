"""Data of case B: whole traces of unequal length, as shards and as one raw float16 file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wdsbench.bench.data import LEAST_SHARDS, SEED, SHARD_MB, Shape, make_dataset, write_raw
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.write.writer import MEGABYTE


@dataclass(frozen=True)
class TraceShape(Shape):
    """A case of traces ``[L, T, D]``, T uniform in ``[shortest, longest]``.

    Attributes:
        shortest: Smallest T.
        longest: Largest T.
    """

    shortest: int
    longest: int

    @cached_property
    def tokens(self) -> list[int]:
        """T of every trace; the same in every run."""
        rng = np.random.default_rng(SEED)
        counts = rng.integers(self.shortest, self.longest + 1, self.samples)
        return [int(count) for count in counts]

    @property
    def padded_batch_bytes(self) -> int:
        """Float32 bytes of a padded batch, the mean over batches in shard order."""
        size = self.batch_size
        longest = [max(self.tokens[i : i + size]) for i in range(0, self.samples, size)]
        return int(np.mean(longest)) * size * self.layers * self.features * 4


#: B: all tokens of a 7B model's layers, 13 MB per trace.
TRACES = TraceShape("B", 150, 32, 4_096, 4, 20, 80)


def make_trace_shards(shape: TraceShape, folder: Path, progress: Progress = no_progress) -> Path:
    """Create ``folder/shards`` unless it exists, and return its path."""
    megabytes = sum(shape.tokens) * shape.layers * shape.features * 2 / MEGABYTE
    shard_mb = min(SHARD_MB, megabytes / LEAST_SHARDS)
    return make_dataset(folder, shape, shard_mb, _States(shape).of, progress=progress)


def make_raw_traces(shape: TraceShape, folder: Path) -> Path:
    """Create ``folder/states.f16``, all traces ``[L, T, D]`` in order, and return its path."""
    return write_raw(folder, shape, _States(shape).of)


class _States:
    """Slices of one block of random states, one per trace, at different tokens."""

    def __init__(self, shape: TraceShape) -> None:
        rng = np.random.default_rng(SEED)
        size = (shape.layers, 2 * shape.longest, shape.features)
        self._block = rng.standard_normal(size, np.float32).astype(np.float16)
        self._shape = shape

    def of(self, number: int) -> NDArray[np.float16]:
        first, count = number % self._shape.longest, self._shape.tokens[number]
        return np.ascontiguousarray(self._block[:, first : first + count])
