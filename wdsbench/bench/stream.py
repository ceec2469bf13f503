"""How fast do batches come out of shards? Bound by memory: a ``memcpy`` of the same float32 bytes.

Cases: ``memcpy`` (one thread, out of cache) is the ceiling of anything that writes each float once
after reading it as a float; ``kernel`` is the C++ decode from page cache to one buffer without
Python; ``ours-t1``, ``ours-t2``, ``ours-w2`` are the public iterator with shuffle, labels and ids,
on one and two decode threads and with two worker processes; ``expert`` the fifteen lines of
``bench/expert.py`` on two threads; then what people use today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from wdsbench import TraceLoader, _core
from wdsbench.bench.data import PT_NAME, RAW_NAME, SHARDS_NAME, Shape
from wdsbench.bench.expert import ExpertReader
from wdsbench.bench.readers import pt_iterable, webdataset_plain, webdataset_tuned
from wdsbench.bench.timing import CaseResult, Work, interleaved
from wdsbench.progress import Progress, no_progress
from wdsbench.shards.index import DatasetIndex
from wdsbench.shards.members import HIDDEN
from wdsbench.stream.files import ShardFiles

THREADS = 2
SHUFFLE = 1000

#: More than any last-level cache, so that memcpy meets memory.
MEMCPY_BYTES = 1 << 29


def run_stream(
    shape: Shape,
    folder: Path,
    *,
    repeats: int = 5,
    least_seconds: float = 0.5,
    progress: Progress = no_progress,
) -> list[CaseResult]:
    """Return the rates of all cases over the data that `make_data` put into ``folder``."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        return interleaved(
            _cases(shape, folder), repeats=repeats, least_seconds=least_seconds, progress=progress
        )
    finally:
        torch.set_num_threads(threads)


def ratios(results: list[CaseResult]) -> dict[str, float]:
    """Return the ratios that the project's figures are stated in."""
    rate = {result.name: result.gbps for result in results}
    ours = rate["ours-t2"]
    found = {f"ours_over_{name}": ours / rate[name] for name in rate if not name.startswith("ours")}
    return {**found, "ours_w2_over_ours_w0": rate["ours-w2"] / ours}


def _cases(shape: Shape, folder: Path) -> dict[str, Callable[[], Work]]:
    shards = folder / SHARDS_NAME
    states = (shape.layers, shape.features)
    batch = shape.batch_size

    def loader(threads: int, workers: int = 0) -> Callable[[], Work]:
        made = TraceLoader(
            shards, batch_size=batch, shuffle=SHUFFLE, threads=threads, num_workers=workers
        )
        return lambda: _consumed(b.hidden for b in made if b.hidden is not None)

    expert = ExpertReader(folder / RAW_NAME, states, batch)
    return {
        "memcpy": _memcpy(),
        "kernel": _Kernel(shape, shards),
        "ours-t1": loader(1),
        "ours-t2": loader(THREADS),
        "ours-w2": loader(1, workers=2),
        "expert": lambda: _consumed(states for states, _ in expert),
        "webdataset": lambda: _consumed(webdataset_plain(shards, batch)),
        "webdataset-tuned": lambda: _consumed(webdataset_tuned(shards, batch, states)),
        "pt-iterable": lambda: _consumed(pt_iterable(folder / PT_NAME, batch)),
    }


def _consumed(batches: Iterable[torch.Tensor]) -> Work:
    """Take every batch and drop it, as a trainer that costs nothing."""
    samples = float_bytes = 0
    for states in batches:
        samples += len(states)
        float_bytes += states.numel() * 4
    return Work(samples, float_bytes)


def _memcpy() -> Callable[[], Work]:
    source, target = (np.ones(MEMCPY_BYTES // 4, np.float32) for _ in range(2))

    def copy() -> Work:
        np.copyto(target, source)
        return Work(1, MEMCPY_BYTES)

    return copy


class _Kernel:
    """The decode alone: jobs made beforehand, one buffer, in the order of the shards."""

    def __init__(self, shape: Shape, shards: Path) -> None:
        index = DatasetIndex.open(shards)
        self._files = ShardFiles(index)  # owns the descriptors that the jobs name
        self._shape = shape
        elements = shape.layers * shape.features
        jobs = np.zeros((len(index), 10), np.int64)
        jobs[:, 0] = self._files.descriptors(index.columns["shard"].tolist())
        jobs[:, 1], jobs[:, 2] = index.member(HIDDEN, "offset"), index.member(HIDDEN, "size")
        jobs[:, 5] = jobs[:, 7] = 1
        jobs[:, 8] = np.arange(len(index)) % shape.batch_size * elements
        jobs[:, 9] = shape.features
        self._jobs = jobs
        self._layers = np.arange(shape.layers, dtype=np.int64)
        self._out = np.zeros(shape.batch_size * elements, np.float32)

    def __call__(self) -> Work:
        """Decode every sample once."""
        shape, jobs = self._shape, self._jobs
        for first in range(0, len(jobs), shape.batch_size):
            _core.decode_rows(
                jobs[first : first + shape.batch_size],
                self._layers,
                layers_stored=shape.layers,
                features=shape.features,
                token_padded=0,
                bf16=False,
                out=self._out,
                threads=THREADS,
            )
        return Work(len(jobs), len(jobs) * shape.layers * shape.features * 4)
