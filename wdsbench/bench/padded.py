"""How fast are whole traces read as padded batches, and how fast only their last token?

Part B: batches ``[B, L, Tmax, D]`` with all tokens, bound by memory: a ``memcpy`` of the padded
batch's float32 bytes. Part B-last: only the last token of every layer of the same shards; a reader
of whole members reads T times too much. Rates count the bytes of the batches, padding included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from wdsbench.bench.ceiling import memcpy
from wdsbench.bench.expert import ExpertTraces
from wdsbench.bench.part import Part, Settings, loader_cases, rates_part
from wdsbench.bench.readers import (
    webdataset_plain_last,
    webdataset_plain_padded,
    webdataset_tuned_last,
    webdataset_tuned_padded,
)
from wdsbench.bench.timing import Work, consumed, states_in
from wdsbench.bench.traces import TRACES, TraceShape, make_raw_traces, make_trace_shards


def padded_part(settings: Settings, shape: TraceShape = TRACES) -> Part:
    """Return the rates of whole traces, padded."""
    readers = _Readers(shape.scaled(settings.scale), settings)
    shape, shards, batch = readers.shape, readers.shards, readers.shape.batch_size
    sizes = (shape.layers, shape.features)
    return rates_part(
        shape,
        settings,
        {
            "memcpy": memcpy(shape.padded_batch_bytes),
            **readers.ours(tokens="all", layout="pad"),
            "expert": lambda: readers.consumed(states for states, _ in readers.expert),
            "webdataset": lambda: readers.consumed(webdataset_plain_padded(shards, batch)),
            "webdataset-tuned": lambda: readers.consumed(
                webdataset_tuned_padded(shards, batch, *sizes)
            ),
        },
        f"{readers.title}, all tokens, padded",
    )


def last_part(settings: Settings, shape: TraceShape = TRACES) -> Part:
    """Return the rates of the last token of every trace."""
    readers = _Readers(shape.scaled(settings.scale), settings)
    shape, shards, batch = readers.shape, readers.shards, readers.shape.batch_size
    sizes = (shape.layers, shape.features)
    return rates_part(
        shape,
        settings,
        {
            **readers.ours(tokens="last_answer", layout="stack"),
            "expert": lambda: readers.consumed(readers.expert.last_tokens()),
            "webdataset": lambda: readers.consumed(webdataset_plain_last(shards, batch)),
            "webdataset-tuned": lambda: readers.consumed(
                webdataset_tuned_last(shards, batch, *sizes)
            ),
        },
        f"{readers.title}, the last token of each",
        name=f"{shape.name}-last",
        measure="samples_per_s",
        unit="samples/s",
        baseline="webdataset-tuned",
    )


class _Readers:
    """The data, the loaders and the expert's mapping, shared by both parts."""

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

    def ours(self, **arguments: str) -> dict[str, Callable[[], Work]]:
        return loader_cases(
            self.shards,
            self.shape.batch_size,
            lambda batches: self.consumed(states_in(batches)),
            **arguments,
        )

    def consumed(self, batches: Iterable[torch.Tensor]) -> Work:
        return consumed(batches, self.shape.samples)
