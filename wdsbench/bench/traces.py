"""Data of case B: whole traces of unequal length, as shards and as one raw float16 file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wdsbench.bench.data import (
    LEAST_SHARDS,
    RAW_NAME,
    SEED,
    SHARD_MB,
    SHARDS_NAME,
    write_samples,
)
from wdsbench.files import atomic_file
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.format.index import INDEX_NAME
from wdsbench.shards.write.writer import MEGABYTE, DatasetWriter


@dataclass(frozen=True)
class TraceShape:
    """Traces ``[L, T, D]``, T uniform in ``[shortest, longest]``.

    Attributes:
        name: Of the case.
        samples: How many.
        layers: L.
        features: D.
        shortest: Smallest T.
        longest: Largest T.
        batch_size: Samples a batch.
    """

    name: str
    samples: int
    layers: int
    features: int
    shortest: int
    longest: int
    batch_size: int

    def scaled(self, scale: float) -> TraceShape:
        """Return the same with a share of the samples, at least one batch."""
        return replace(self, samples=max(self.batch_size, int(self.samples * scale)))

    @property
    def folder_name(self) -> str:
        """Where the data lies inside ``--data``."""
        return f"{self.name}-{self.samples}"

    @cached_property
    def tokens(self) -> list[int]:
        """T of every trace, the same in every run."""
        rng = np.random.default_rng(SEED)
        counts = rng.integers(self.shortest, self.longest + 1, self.samples)
        return [int(count) for count in counts]

    @property
    def padded_batch_bytes(self) -> int:
        """Float32 bytes of a padded batch: the mean over batches in the order of the shards."""
        size = self.batch_size
        longest = [max(self.tokens[i : i + size]) for i in range(0, self.samples, size)]
        return int(np.mean(longest)) * size * self.layers * self.features * 4


#: B: all tokens of a 7B model's layers, 13 MB a trace.
TRACES = TraceShape("B", 150, 32, 4_096, 20, 80, 4)


def make_trace_shards(shape: TraceShape, folder: Path, progress: Progress = no_progress) -> Path:
    """Make ``folder/shards`` where it is not there yet, and return it."""
    shards = folder / SHARDS_NAME
    if not (shards / INDEX_NAME).exists():
        states = _States(shape)
        megabytes = sum(shape.tokens) * shape.layers * shape.features * 2 / MEGABYTE
        write_samples(
            DatasetWriter(shards, shard_mb=min(SHARD_MB, megabytes / LEAST_SHARDS)),
            progress(range(shape.samples), shape.samples, f"writing shards of {shape.name}"),
            states.of,
        )
    return shards


def make_raw_traces(shape: TraceShape, folder: Path) -> Path:
    """Make ``folder/states.f16``, the traces ``[L, T, D]`` one behind the other, and return it."""
    path = folder / RAW_NAME
    if not path.exists():
        states = _States(shape)
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            for i in range(shape.samples):
                file.write(states.of(i).tobytes())
    return path


class _States:
    """Cuts every trace out of one block of random states, each at another token."""

    def __init__(self, shape: TraceShape) -> None:
        rng = np.random.default_rng(SEED)
        size = (shape.layers, 2 * shape.longest, shape.features)
        self._block = rng.standard_normal(size, np.float32).astype(np.float16)
        self._shape = shape

    def of(self, number: int) -> NDArray[np.float16]:
        first, count = number % self._shape.longest, self._shape.tokens[number]
        return np.ascontiguousarray(self._block[:, first : first + count])
