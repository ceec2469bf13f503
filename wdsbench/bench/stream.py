"""How fast do batches come out of shards? Bound by memory: a ``memcpy`` of the same float32 bytes.

Parts A and S: equal samples. B: whole traces as padded batches ``[B, L, Tmax, D]``, whose rates
count padding. B-last: only the last token of every layer of B's shards; a reader of whole members
reads T times too much.

``memcpy`` (one thread, out of cache) is the ceiling of any reader that copies float32; ``kernel``
is the C++ decode without Python, ``kernel-pread`` the same with ``pread`` instead of a mapping;
``ours-t1``, ``ours-t2``, ``ours-w2`` are the public iterator with shuffle, labels and ids, on one
and two decode threads and with two worker processes; the others are those of ``bench/readers.py``.
``pt-map`` reads a whole file for nearly every sample, so it is stopped after a share of its epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from wdsbench.bench import readers
from wdsbench.bench.ceiling import kernel, memcpy
from wdsbench.bench.data import (
    PT_SAMPLES,
    TRACES,
    Shape,
    TraceShape,
    make_pt,
    make_raw,
    make_shards,
)
from wdsbench.bench.part import WORKERS, Part, Settings, loader_cases, rates_part
from wdsbench.bench.readers import ExpertTraces
from wdsbench.bench.timing import Work, consumed, states_in

#: Duration of a repeat of ``pt-map``.
PT_MAP_SECONDS = 1.5


def stream_part(shape: Shape, settings: Settings) -> Part:
    """Return the rates of all cases over ``shape``; missing data is created."""
    shape = shape.scaled(settings.scale)
    folder = settings.data / shape.folder_name
    shards = make_shards(shape, folder, settings.progress)
    raw, pt = make_raw(shape, folder), make_pt(shape, folder)
    states, batch, samples = shape.state_shape, shape.batch_size, shape.samples
    expert = readers.ExpertReader(raw, states, batch)
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
    title = f"{samples:,} x [{shape.layers}, {shape.features}], batch {batch}"
    return rates_part(shape, settings, cases, title)


Batches = Iterator[torch.Tensor]


def padded_part(settings: Settings, shape: TraceShape = TRACES) -> Part:
    """Return the rates of whole traces, padded."""
    return _rates(
        shape.scaled(settings.scale),
        settings,
        "all tokens, padded",
        {"tokens": "all", "layout": "pad"},
        expert=lambda traces: (states for states, _ in traces),
        plain=readers.webdataset_plain_padded,
        tuned=readers.webdataset_tuned_padded,
    )


def last_part(settings: Settings, shape: TraceShape = TRACES) -> Part:
    """Return the rates of the last token of every trace."""
    return _rates(
        shape.scaled(settings.scale),
        settings,
        "the last token of each",
        {"tokens": "last_answer", "layout": "stack"},
        name=f"{shape.name}-last",
        expert=ExpertTraces.last_tokens,
        plain=readers.webdataset_plain_last,
        tuned=readers.webdataset_tuned_last,
        measure="samples_per_s",
        unit="samples/s",
        baseline="webdataset-tuned",
    )


def _rates(
    shape: TraceShape,
    settings: Settings,
    title: str,
    ours: Mapping[str, str],
    *,
    expert: Callable[[ExpertTraces], Batches],
    plain: Callable[..., Batches],
    tuned: Callable[..., Batches],
    **words: Any,
) -> Part:
    """Return the rates of the loader with arguments ``ours``, and of the other readers."""
    folder, batch, sizes = settings.data / shape.folder_name, shape.batch_size, shape.state_shape
    shards = make_shards(shape, folder, settings.progress)
    traces = ExpertTraces(make_raw(shape, folder), shape.tokens, *sizes, batch)

    def epoch(batches: Batches) -> Work:
        return consumed(batches, shape.samples)

    whole = ours["tokens"] == "all"
    cases = {
        **({"memcpy": memcpy(shape.padded_batch_bytes)} if whole else {}),
        **loader_cases(shards, batch, lambda batches: epoch(states_in(batches)), **ours),
        "expert": lambda: epoch(expert(traces)),
        "webdataset": lambda: epoch(plain(shards, batch)),
        "webdataset-tuned": lambda: epoch(tuned(shards, batch, *sizes)),
    }
    size = f"[{shape.layers}, {shape.shortest}..{shape.longest}, {shape.features}]"
    title = f"{shape.samples:,} x {size}, batch {batch}, {title}"
    return rates_part(shape, settings, cases, title, **words)
