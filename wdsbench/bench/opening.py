"""How long does it take from a data set's path to the first batch?

Bound by opening the index, starting workers, and one batch. Every repeat makes a new loader, with
modules imported and files in the page cache: over case A, and over a million small samples in a
thousand shards, which shows any start-up work per sample or shard.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from wdsbench.bench.data import SHAPES, Shape, make_dataset, make_shards
from wdsbench.bench.part import LOADER_FACTS, SHUFFLE, THREADS, WORKERS, Part, Settings
from wdsbench.bench.timing import in_seconds
from wdsbench.loader import TraceLoader
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.writer import MEGABYTE

SHARD_SAMPLES = 1_000

#: A thousand shards of a thousand samples: 2 GB, mostly tar headers.
MILLION = Shape("million", 1_000_000, 2, 8, 256)

#: Two members per sample, each with one header block and one block of data.
SMALL_SAMPLE_BYTES = 4 * 512


def opening_part(settings: Settings, shape: Shape = SHAPES["A"], million: Shape = MILLION) -> Part:
    """Return the seconds to the first batch, without workers and with two workers."""
    shape, million = shape.scaled(settings.scale), million.scaled(settings.scale)
    few = make_shards(shape, settings.data / shape.folder_name, settings.progress)
    many = make_many(million, settings.data / million.folder_name, settings.progress)
    cases = {
        "a-w0": _first_batch(few, shape.batch_size, 0),
        "a-w2": _first_batch(few, shape.batch_size, WORKERS),
        "million-w0": _first_batch(many, million.batch_size, 0),
        "million-w2": _first_batch(many, million.batch_size, WORKERS),
        "million-index": _opened(many),
    }
    results = in_seconds(cases, repeats=settings.repeats, progress=settings.progress)
    return Part(
        name="open",
        title=f"open: constructing a loader to its first batch; A is {shape.samples:,} samples,"
        f" million {million.samples:,} in shards of {SHARD_SAMPLES:,}",
        results=results,
        ratios={f"{r.name.replace('-', '_')}_seconds": r.seconds or 0.0 for r in results},
        measure="seconds",
        unit="seconds",
        facts={
            "a": asdict(shape),
            "million": asdict(million),
            "million_shards": len(DatasetIndex.open(many).file.shardlist),
            **LOADER_FACTS,
        },
    )


def make_many(shape: Shape, folder: Path, progress: Progress = no_progress) -> Path:
    """Create ``folder/shards``, shards of `SHARD_SAMPLES` small samples, and return its path."""
    states = np.ones((shape.layers, 1, shape.features), np.float16)
    shard_mb = SHARD_SAMPLES * SMALL_SAMPLE_BYTES / MEGABYTE
    return make_dataset(folder, shape, lambda _: states, shard_mb=shard_mb, progress=progress)


def _first_batch(shards: Path, batch_size: int, workers: int) -> Callable[[], float]:
    def seconds() -> float:
        start = time.perf_counter()
        loader = TraceLoader(
            shards, batch_size=batch_size, shuffle=SHUFFLE, threads=THREADS, num_workers=workers
        )
        batches: Any = iter(loader)
        next(batches)
        taken = time.perf_counter() - start
        batches.close()  # workers end with the loader, outside the measured time
        return taken

    return seconds


def _opened(shards: Path) -> Callable[[], float]:
    def seconds() -> float:
        start = time.perf_counter()
        DatasetIndex.open(shards)
        return time.perf_counter() - start

    return seconds
