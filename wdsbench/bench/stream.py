"""How fast do batches come out of shards? Bound by memory: a ``memcpy`` of the same float32 bytes.

Parts A and S. Cases: ``memcpy`` (one thread, out of cache) is the ceiling of any reader that copies
float32; ``kernel`` is the C++ decode from page cache to one buffer without Python,
``kernel-pread`` the same with ``pread`` instead of a mapping; ``ours-t1``, ``ours-t2``,
``ours-w2`` are the public iterator with shuffle, labels and ids, on one and two decode threads and
with two worker processes; ``expert`` is the fifteen lines of ``bench/expert.py`` on two threads;
the others are common practice. ``pt-map`` reads a whole file for nearly every sample, so it is
stopped after a share of its epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wdsbench.bench import readers
from wdsbench.bench.ceiling import kernel, memcpy
from wdsbench.bench.data import PT_SAMPLES, Shape, make_pt, make_raw, make_shards
from wdsbench.bench.expert import ExpertReader
from wdsbench.bench.part import WORKERS, Part, Settings, loader_cases, rates_part
from wdsbench.bench.timing import Work, consumed, states_in

#: Duration of a repeat of ``pt-map``.
PT_MAP_SECONDS = 1.5


def stream_part(shape: Shape, settings: Settings) -> Part:
    """Return the rates of all cases over ``shape``; missing data is created."""
    shape = shape.scaled(settings.scale)
    folder = settings.data / shape.folder_name
    title = f"{shape.samples:,} x [{shape.layers}, {shape.features}], batch {shape.batch_size}"
    return rates_part(shape, settings, _cases(shape, folder, settings), title)


def _cases(shape: Shape, folder: Path, settings: Settings) -> dict[str, Callable[[], Work]]:
    shards = make_shards(shape, folder, settings.progress)
    raw, pt = make_raw(shape, folder), make_pt(shape, folder)
    states = (shape.layers, shape.features)
    batch, samples = shape.batch_size, shape.samples

    expert = ExpertReader(raw, states, batch)
    by_number = readers.PtMap(pt, samples, PT_SAMPLES)
    cases: dict[str, Callable[[], Work]] = {
        "memcpy": memcpy(),
        "kernel": kernel(shape, shards, "map"),
        "kernel-pread": kernel(shape, shards, "pread"),
        **loader_cases(shards, batch, lambda batches: consumed(states_in(batches), samples)),
        "expert": lambda: consumed((states for states, _ in expert), samples),
        "webdataset": lambda: consumed(readers.webdataset_plain(shards, batch), samples),
        "webdataset-tuned": lambda: consumed(
            readers.webdataset_tuned(shards, batch, states), samples
        ),
        "pt-iterable": lambda: consumed(readers.pt_iterable(pt, batch), samples),
        "pt-map": lambda: consumed(
            readers.pt_map(by_number, batch), samples, most_seconds=PT_MAP_SECONDS
        ),
    }
    if settings.more_readers:
        shard_workers = readers.webdataset_workers(shards, batch, WORKERS)
        file_workers = readers.pt_iterable_workers(pt, batch, WORKERS)
        cases["webdataset-w2"] = lambda: consumed(shard_workers, samples)
        cases["pt-iterable-w2"] = lambda: consumed(readers.states_of(file_workers), samples)
    return cases
