"""How fast are whole traces read as padded batches, and how fast only their last token?

Part B: batches ``[B, L, Tmax, D]`` with all tokens, bound by memory: a ``memcpy`` of the padded
batch's float32 bytes. Part B-last: only the last token of every layer of the same shards; a reader
of whole members reads T times too much. Rates count the bytes of the batches, padding included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from wdsbench.bench import readers
from wdsbench.bench.ceiling import memcpy
from wdsbench.bench.data import TRACES, TraceShape, make_raw_traces, make_trace_shards
from wdsbench.bench.expert import ExpertTraces
from wdsbench.bench.part import Part, Settings, loader_cases, rates_part
from wdsbench.bench.timing import Work, consumed, states_in

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
        expert=ExpertTraces.last_tokens,
        plain=readers.webdataset_plain_last,
        tuned=readers.webdataset_tuned_last,
        name=f"{shape.name}-last",
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
    shards = make_trace_shards(shape, folder, settings.progress)
    traces = ExpertTraces(make_raw_traces(shape, folder), shape.tokens, *sizes, batch)

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
