"""How fast do whole traces come out of shards, padded, and how fast one token of each?

Part B: batches ``[B, L, Tmax, D]`` with all tokens, bound by memory: a ``memcpy`` of the padded
batch's float32 bytes. Part B-last: the same shards, of which only the last token of every layer is
wanted; whoever reads whole members reads T times too much, so it is bound by what is *not* read.
Rates count the bytes of the batches that come out, padding included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from wdsbench import TraceLoader
from wdsbench.bench.ceiling import memcpy
from wdsbench.bench.expert import ExpertTraces
from wdsbench.bench.part import (
    SHUFFLE,
    THREADS,
    WORKERS,
    Part,
    Settings,
    measured_rates,
    rate_ratios,
)
from wdsbench.bench.readers import (
    webdataset_plain_last,
    webdataset_plain_padded,
    webdataset_tuned_last,
    webdataset_tuned_padded,
)
from wdsbench.bench.timing import Work, consumed
from wdsbench.bench.traces import TRACES, TraceShape, make_raw_traces, make_trace_shards

Cases = dict[str, Callable[[], Work]]


def padded_part(settings: Settings, shape: TraceShape = TRACES) -> Part:
    """Return the rates of whole, padded traces."""
    readers = _Readers(shape.scaled(settings.scale), settings)
    shape, shards, batch = readers.shape, readers.shards, readers.shape.batch_size
    sizes = (shape.layers, shape.features)
    results = measured_rates(
        {
            "memcpy": memcpy(shape.padded_batch_bytes),
            **readers.ours(tokens="all", layout="pad"),
            "expert": lambda: readers.consumed(states for states, _ in readers.expert),
            "webdataset": lambda: readers.consumed(webdataset_plain_padded(shards, batch)),
            "webdataset-tuned": lambda: readers.consumed(
                webdataset_tuned_padded(shards, batch, *sizes)
            ),
        },
        settings,
    )
    return Part(
        name=shape.name,
        title=f"{shape.name}: {readers.title}, all tokens, padded",
        results=results,
        ratios=rate_ratios(results),
        baseline="memcpy",
        facts=readers.facts,
    )


def last_part(settings: Settings, shape: TraceShape = TRACES) -> Part:
    """Return the rates of the last token of every trace."""
    readers = _Readers(shape.scaled(settings.scale), settings)
    shape, shards, batch = readers.shape, readers.shards, readers.shape.batch_size
    sizes = (shape.layers, shape.features)
    results = measured_rates(
        {
            **readers.ours(tokens="last_answer", layout="stack"),
            "expert": lambda: readers.consumed(readers.expert.last_tokens()),
            "webdataset": lambda: readers.consumed(webdataset_plain_last(shards, batch)),
            "webdataset-tuned": lambda: readers.consumed(
                webdataset_tuned_last(shards, batch, *sizes)
            ),
        },
        settings,
    )
    return Part(
        name=f"{shape.name}-last",
        title=f"{shape.name}-last: {readers.title}, the last token of each",
        results=results,
        ratios=rate_ratios(results, "samples_per_s"),
        measure="samples_per_s",
        unit="samples/s",
        baseline="webdataset-tuned",
        facts=readers.facts,
    )


class _Readers:
    """What both parts share: data, loaders, the expert's map."""

    def __init__(self, shape: TraceShape, settings: Settings) -> None:
        folder = settings.data / shape.folder_name
        self.shape = shape
        self.shards = make_trace_shards(shape, folder, settings.progress)
        self.expert = ExpertTraces(
            make_raw_traces(shape, folder),
            shape.tokens,
            shape.layers,
            shape.features,
            shape.batch_size,
        )

    @property
    def title(self) -> str:
        shape = self.shape
        tokens = f"{shape.shortest}..{shape.longest}"
        return (
            f"{shape.samples:,} x [{shape.layers}, {tokens}, {shape.features}],"
            f" batch {shape.batch_size}"
        )

    @property
    def facts(self) -> dict[str, Any]:
        return {**asdict(self.shape), "threads": THREADS, "workers": WORKERS, "shuffle": SHUFFLE}

    def ours(self, *, tokens: str, layout: str) -> Cases:
        def case(threads: int, workers: int = 0) -> Callable[[], Work]:
            made = TraceLoader(
                self.shards,
                tokens=tokens,
                layout=layout,
                batch_size=self.shape.batch_size,
                shuffle=SHUFFLE,
                threads=threads,
                num_workers=workers,
            )
            return lambda: self.consumed(b.hidden for b in made if b.hidden is not None)

        return {
            "ours-t1": case(1),
            "ours-t2": case(THREADS),
            "ours-w2": case(1, workers=WORKERS),
        }

    def consumed(self, batches: Any) -> Work:
        return consumed(batches, self.shape.samples)
