"""A trace out of a raw file, read by the safe readers up to the one that is wanted."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from wdsbench.errors import TraceError
from wdsbench.records import EdgeLists, LayerEdges, ReducedAttention, Trace
from wdsbench.shards.members import causal_half
from wdsbench.traces.attention import as_maps
from wdsbench.traces.read import read_traces
from wdsbench.view.trace import ViewedTrace, shown_name


def read_raw(path: Path, place: int | None = None, question: str | None = None) -> ViewedTrace:
    """Return a trace of a raw file: at a place, of a question, or the first.

    Raises:
        ValueError: There is none.
        TraceError: The file, or a trace up to the wanted one, cannot be read.
    """
    count = 0
    for trace in read_traces(path):
        if question in (None, trace.question_id) and place in (None, count):
            return _of_raw(trace, path)
        count += 1
    asked = f"--trace {place}" if question is None else f"--question {question}"
    raise ValueError(
        f"{asked}: {path} holds no such trace among its {count}; --trace is 0 to {count - 1}"
    )


def _of_raw(trace: Trace, path: Path) -> ViewedTrace:
    tokens = trace.tokens.size or trace.hidden.shape[1]
    texts = trace.token_texts or [f"#{number}" for number in trace.tokens.tolist()]
    stem = re.sub(r"[^A-Za-z0-9_-]", "_", path.name.partition(".")[0])
    full = None if trace.attentions is None else causal_half(as_maps(trace.attentions))
    kept = trace.reduced
    if kept is None and trace.graphs is not None:
        kept = ReducedAttention(len(trace.graphs), 0, edges=_joined(trace.graphs))
    return ViewedTrace(
        name=shown_name(trace.question_id, trace.trace_number),
        source=f"{path.name}, trace {trace.position}",
        slug=f"{stem}-{trace.position}",
        error=lambda detail: TraceError(
            detail, file=trace.file, position=trace.position, question_id=trace.question_id
        ),
        stored=False,
        texts=texts if len(texts) == tokens else [f"token {i}" for i in range(tokens)],
        prompt_length=trace.prompt_length,
        answer=trace.answer,
        hidden=trace.hidden.astype(np.float32),
        label=trace.label,
        full=full,
        kept=kept,
        model_layers=trace.layers,
    )


def _joined(layers: list[LayerEdges]) -> EdgeLists:
    ends = np.cumsum([0, *(layer.weight.size for layer in layers)]).astype(np.uint32)
    return EdgeLists(
        np.concatenate([layer.index for layer in layers], axis=1),
        np.concatenate([layer.weight for layer in layers]),
        ends,
    )
