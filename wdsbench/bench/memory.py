"""How much memory does a shuffle buffer of 1,000 traces of 13 MB add?

The difference between two new processes that iterate over the same data set with shuffle 1 and
1,000: the maximum of `footprint_mb` after any batch, workers included. The shards are valid sparse
files of zeros. A buffer is full before its first batch, so a share of the epoch suffices.
``python -m wdsbench.bench.memory SHARDS SHUFFLE WORKERS BATCH_SIZE`` is one such process.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from wdsbench.bench.data import SHARD_MB, TraceShape, make_dataset
from wdsbench.bench.part import SHUFFLE, THREADS, WORKERS, Part, Settings, value_of
from wdsbench.bench.timing import CaseResult, footprint_mb, new_process, spread, take_turns
from wdsbench.loader import TraceLoader
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.format.tar import TarWriter
from wdsbench.shards.write.shard import OpenShard, ShardWriter
from wdsbench.shards.write.writer import DatasetWriter

#: 1,024 traces of 13 MB for each of two workers, so that each fills its own buffer.
HOLES = TraceShape("holes", WORKERS * 1_024, 32, 4_096, 4, 50, 50)

#: Number of batches that a process reads.
BATCHES = 32

#: Maximum number of repeats: memory hardly varies between runs.
MOST_REPEATS = 3

#: Smaller writes are never holes: file systems keep holes in blocks of 4 KiB.
HOLE_LEAST_BYTES = 1 << 16


def memory_part(settings: Settings, shape: TraceShape = HOLES) -> Part:
    """Return the memory of each process, and what the shuffle buffer adds."""
    shuffle = max(2, int(SHUFFLE * settings.scale))
    shape = shape.scaled(settings.scale)
    shards = make_holes(shape, settings.data / shape.folder_name, settings.progress)
    cases = {
        f"w{workers}-shuffle-{size}": new_process(
            __spec__.name, [str(shards), str(size), str(workers), str(shape.batch_size)]
        )
        for workers in (0, WORKERS)
        for size in (1, shuffle)
    }
    repeats = min(settings.repeats, MOST_REPEATS)
    found = take_turns(cases, repeats, progress=settings.progress)
    results = [
        CaseResult(name, spread(values), repeats, memory_mb=statistics.median(values))
        for name, values in found.items()
    ]

    def added(workers: int) -> float:
        with_buffer = value_of(results, f"w{workers}-shuffle-{shuffle}", "memory_mb")
        return with_buffer - value_of(results, f"w{workers}-shuffle-1", "memory_mb")

    trace_mb = shape.layers * shape.longest * shape.features * 2 / 1e6
    return Part(
        name="memory",
        title=f"memory: {shape.samples:,} traces of {trace_mb:.1f} MB, batch {shape.batch_size};"
        f" a buffer of {shuffle:,} would hold {shuffle * trace_mb:,.0f} MB of bytes",
        results=results,
        ratios={"shuffle_mb": added(0), "shuffle_w2_mb": added(WORKERS)},
        measure="memory_mb",
        unit="MB, anonymous and shared",
        facts={**asdict(shape), "shuffle": shuffle, "trace_mb": trace_mb, "threads": THREADS},
    )


class HoleFile:
    """A file writer that leaves a hole for a large piece of zeros, which must not be the last."""

    def __init__(self, file: BinaryIO) -> None:
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
        folder,
        shape,
        lambda _: states,
        shard_mb=SHARD_MB,
        progress=progress,
        open_writer=HoleWriter,
    )


def peak_mb(shards: Path, shuffle: int, workers: int, batch_size: int) -> float:
    """Return the maximum memory of this process and its workers after any batch."""
    loader = TraceLoader(
        shards,
        tokens="all",
        layout="pad",
        batch_size=batch_size,
        shuffle=shuffle,
        threads=THREADS,
        num_workers=workers,
    )
    most = 0.0
    for number, _ in enumerate(loader, 1):
        most = max(most, footprint_mb())
        if number == BATCHES:
            break
    return most


if __name__ == "__main__":
    print(peak_mb(Path(sys.argv[1]), *(int(word) for word in sys.argv[2:5])))
