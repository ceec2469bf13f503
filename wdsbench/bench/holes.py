"""A data set that holds no bytes: valid shards whose payloads are zeros that no disk stores.

A thousand traces of 13 MB are 13 GB. What a shuffle buffer of them costs does not depend on their
values, so the payloads are holes of sparse files: headers, sizes, hashes and index are those of a
data set of zeros, and the disk holds a few kilobytes a trace.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from wdsbench.bench.data import SHARDS_NAME, write_samples
from wdsbench.bench.traces import TraceShape
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.format.index import INDEX_NAME
from wdsbench.shards.format.tar import TarWriter
from wdsbench.shards.write.writer import DatasetWriter

#: Smaller writes are written: a file system keeps holes in blocks of 4 KiB.
HOLE_LEAST_BYTES = 1 << 16


class HoleFile:
    """Writes to a file and leaves a hole where a large piece is all zeros."""

    def __init__(self, file: BinaryIO) -> None:
        """Write to ``file``, whose last write must be a small one: a hole at the end is no file."""
        self._file = file

    def write(self, data: bytes | memoryview) -> int:
        """Append ``data``."""
        if len(data) < HOLE_LEAST_BYTES or np.frombuffer(data, np.uint8).any():
            return self._file.write(data)
        self._file.seek(len(data), 1)
        return len(data)


class HoleWriter(DatasetWriter):
    """A `DatasetWriter` whose shards have holes."""

    def _start(self, split: str) -> Any:
        shard = super()._start(split)
        shard.tar = TarWriter(cast(BinaryIO, HoleFile(shard.file)))
        return shard


def make_holes(shape: TraceShape, folder: Path, progress: Progress = no_progress) -> Path:
    """Make ``folder/shards``, traces of ``shape.longest`` tokens of zeros, and return it."""
    shards = folder / SHARDS_NAME
    if not (shards / INDEX_NAME).exists():
        states = np.zeros((shape.layers, shape.longest, shape.features), np.float16)
        write_samples(
            HoleWriter(shards),
            progress(range(shape.samples), shape.samples, f"writing shards of {shape.name}"),
            lambda _: states,
        )
    return shards
