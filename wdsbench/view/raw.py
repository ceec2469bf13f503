"""One trace of a raw file. Only that trace is checked, not those before it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wdsbench.errors import TraceError
from wdsbench.records import ReducedAttention, Trace
from wdsbench.shards.format.members import causal_half
from wdsbench.traces.arrays import question_of
from wdsbench.traces.attention import as_maps
from wdsbench.traces.check import check_trace
from wdsbench.traces.read import raw_objects
from wdsbench.traces.tensors import sequence_traces
from wdsbench.view.trace import ViewedTrace, shown_name, shown_texts


def read_raw(path: Path, place: int | None = None, question: str | None = None) -> ViewedTrace:
    """Return a trace of a raw file: at a place, of a question, or the first.

    Raises:
        ValueError: There is no such trace.
        TraceError: The trace fails its check, or the file cannot be read up to it.
    """
    wanted, count, nameless = place or 0, 0, 0
    for raw in raw_traces(path):
        name = raw.question_id if isinstance(raw, Trace | TraceError) else question_of(raw)
        if count == wanted if question is None else name == question:
            return _of_raw(_checked(raw, str(path), count), path)
        nameless += name is None
        count += 1
    if not count:
        raise TraceError("the file holds no traces.", file=str(path))
    asked = f"--trace {place}" if question is None else f"--question {question}"
    note = f"; {nameless} of them have no question id that can be read" if nameless else ""
    raise ValueError(
        f"{asked}: {path} holds no such trace among its {count}{note if question else ''}; --trace"
        f" is 0 to {count - 1}"
    )


def raw_traces(path: Path) -> Iterator[Any]:
    """Yield each trace of a file unchecked; of a preprocessed one, checked traces or errors."""
    for content in raw_objects(path):
        if isinstance(content, Mapping):
            yield from sequence_traces(content, str(path))
        else:
            yield from released(content)


def released(traces: list[Any]) -> Iterator[Any]:
    """Yield the entries of a list, which drops each, so that one at a time is in memory."""
    for place in range(len(traces)):
        raw, traces[place] = traces[place], None
        yield raw


def _checked(raw: Any, file: str, position: int) -> Trace:
    if isinstance(raw, TraceError):
        raise raw
    return raw if isinstance(raw, Trace) else check_trace(raw, file, position)


def _of_raw(trace: Trace, path: Path) -> ViewedTrace:
    stem = re.sub(r"[^A-Za-z0-9_-]", "_", path.name.partition(".")[0])
    full = None if trace.attentions is None else causal_half(as_maps(trace.attentions))
    kept = trace.reduced
    if kept is None and trace.graphs is not None:
        kept = ReducedAttention(len(trace.hidden), 0, edges=trace.graphs)
    return ViewedTrace(
        name=shown_name(trace.question_id, trace.trace_number),
        source=f"{path.name}, trace {trace.position}",
        slug=f"{stem}-{trace.position}",
        error=lambda detail: TraceError.at(trace, detail),
        stored=False,
        texts=shown_texts(trace.token_texts, trace.tokens.tolist(), trace.num_tokens),
        prompt_length=trace.prompt_length,
        answer=trace.answer,
        hidden=trace.hidden.astype(np.float32),
        label=trace.label,
        full=full,
        kept=kept,
        model_layers=trace.layers,
    )
