"""A data set of sparse files: valid shards whose payloads are zeros that take no disk space.

A thousand traces of 13 MB are 13 GB. The cost of a shuffle buffer does not depend on their values,
so the payloads are holes: headers, sizes, hashes and index are those of a data set of zeros, and
the disk stores a few kilobytes per trace.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from wdsbench.bench.data import SHARD_MB, make_dataset
from wdsbench.bench.traces import TraceShape
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.format.tar import TarWriter
from wdsbench.shards.write.shard import OpenShard, ShardWriter
from wdsbench.shards.write.writer import DatasetWriter

#: Smaller writes are never holes: file systems keep holes in blocks of 4 KiB.
HOLE_LEAST_BYTES = 1 << 16


class HoleFile:
    """A file writer that leaves a hole for a large piece of zeros."""

    def __init__(self, file: BinaryIO) -> None:
        """Write to ``file``; the last write must be small, since a hole cannot end a file."""
        self._file = file

    def write(self, data: bytes | memoryview) -> int:
        """Append ``data``."""
        if len(data) < HOLE_LEAST_BYTES or np.frombuffer(data, np.uint8).any():
            return self._file.write(data)
        self._file.seek(len(data), 1)
        return len(data)


class HoleShards(ShardWriter):
    """A `ShardWriter` that leaves holes in its files."""

    def start(self, split: str) -> OpenShard:
        """Create the next shard of a split and return it."""
        shard = super().start(split)
        shard.tar = TarWriter(cast(BinaryIO, HoleFile(shard.file)))
        return shard


class HoleWriter(DatasetWriter):
    """A `DatasetWriter` whose shards have holes."""

    shard_writer = HoleShards


def make_holes(shape: TraceShape, folder: Path, progress: Progress = no_progress) -> Path:
    """Create ``folder/shards``, traces of ``shape.longest`` zero tokens, and return its path."""
    states = np.zeros((shape.layers, shape.longest, shape.features), np.float16)
    return make_dataset(
        folder, shape, SHARD_MB, lambda _: states, progress=progress, open_writer=HoleWriter
    )
