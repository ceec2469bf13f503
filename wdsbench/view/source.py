"""Finds one trace in a packed data set or in a raw file, where no trace before it is checked.

Whole maps are reduced by the packer's rules, so that a graph shows the edges that a detector reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wdsbench.errors import ShardError, TraceError
from wdsbench.records import SPLITS, ReducedAttention, Trace
from wdsbench.shards.format.members import causal_half
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.open import open_index
from wdsbench.shards.read.sample import StoredSample
from wdsbench.traces.arrays import question_of
from wdsbench.traces.attention import AttentionRules, MapError, as_maps, join_layers, reduce_maps
from wdsbench.traces.check import check_trace
from wdsbench.traces.files import kind_of
from wdsbench.traces.read import raw_objects
from wdsbench.traces.tensors import sequence_traces
from wdsbench.view.trace import ViewedTrace, shown_name, shown_texts


def open_trace(
    path: str | Path,
    *,
    trace: int | None = None,
    sample: str | None = None,
    question: str | None = None,
) -> tuple[ViewedTrace, DatasetIndex | None]:
    """Return a trace of a data set (folder, tar files) or raw file, and the index of the former.

    The trace is named by its place from 0 (row of the index, or place in the file), by its member
    key (data sets only), or by its question id, for the first of that question.

    Raises:
        ValueError: The trace does not exist, or is named in several ways.
        ShardError, TraceError: Nothing can be read there.
    """
    _check_wanted(trace, sample, question)
    file = Path(path)
    if kind_of(file) is not None and not file.is_dir():
        if sample is not None:
            raise ValueError(
                f"--sample {sample}: {path} is a raw file, whose traces have no key; use"
                " --trace or --question"
            )
        return _with_edges(_read_raw(file, trace, question)), None
    index = open_index(path)
    row = stored_row(index, path, trace=trace, sample=sample, question=question)
    return _with_edges(_read_stored(index, row, str(path))), index


def stored_row(
    index: DatasetIndex,
    path: str | Path,
    *,
    trace: int | None = None,
    sample: str | None = None,
    question: str | None = None,
) -> int:
    """Return the row of a sample of a data set, named as for `open_trace`; ValueError if there is
    none.
    """
    _check_wanted(trace, sample, question)
    total = len(index)
    row = trace or 0
    if sample is not None:
        row = _find("sample", sample, index.keys(np.arange(total)), path)
    elif question is not None:
        row = _find("question", question, index.question_ids(np.arange(total)), path)
    elif row >= total:
        raise ValueError(f"--trace {row}: {path} holds {total} traces, 0 to {total - 1}")
    return row


def _check_wanted(trace: int | None, sample: str | None, question: str | None) -> None:
    wanted = {"trace": trace, "sample": sample, "question": question}
    given = [f"--{name}" for name, value in wanted.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)}: give one of them")
    if trace is not None and trace < 0:
        raise ValueError(f"--trace {trace}: places count from 0")


def _find(word: str, name: str, names: list[str], path: str | Path) -> int:
    if name not in names:
        some = ", ".join(names[:3])
        raise ValueError(
            f"--{word} {name}: not among the {len(names)} traces of {path} ({some}, ...)"
        )
    return names.index(name)


def _read_raw(path: Path, place: int | None, question: str | None) -> ViewedTrace:
    """Return a trace of a raw file: at a place, of a question, or the first."""
    wanted, count, nameless = place or 0, 0, 0
    for raw in raw_traces(path):
        name = raw.question_id if isinstance(raw, Trace | TraceError) else question_of(raw)
        if count == wanted if question is None else name == question:
            if isinstance(raw, TraceError):
                raise raw
            trace = raw if isinstance(raw, Trace) else check_trace(raw, str(path), count)
            return _of_raw(trace, path)
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


def _of_raw(trace: Trace, path: Path) -> ViewedTrace:
    stem = re.sub(r"[^A-Za-z0-9_-]", "_", path.name.partition(".")[0])
    full = None if trace.attentions is None else causal_half(as_maps(trace.attentions))
    kept = trace.reduced or ReducedAttention(len(trace.hidden), 0, edges=trace.graphs)
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


def _with_edges(trace: ViewedTrace) -> ViewedTrace:
    """Return the trace with edges and sketch of its maps, if it has only maps."""
    kept, full = trace.kept, trace.full
    missing = [kind for kind in ("edges", "sketch") if getattr(kept, kind) is None]
    if full is None or not missing:
        return trace
    rules = AttentionRules(tuple(missing))
    lower = np.tril_indices(trace.num_tokens)
    parts = []
    for number, half in enumerate(full):
        layer = np.zeros((len(half), trace.num_tokens, trace.num_tokens), np.float16)
        layer[:, *lower] = half
        try:
            parts.append(
                reduce_maps(
                    as_maps([layer]), rules, prompt_length=trace.prompt_length, first_layer=number
                )
            )
        except MapError as error:
            raise trace.error(str(error)) from error
    made = join_layers(parts)
    both = replace(
        kept,
        edges=kept.edges or made.edges,
        edge_rule=kept.edge_rule if kept.edges is not None else made.edge_rule,
        sketch=made.sketch if kept.sketch is None else kept.sketch,
    )
    return replace(trace, kept=both)


def _read_stored(index: DatasetIndex, row: int, path: str) -> ViewedTrace:
    sample, table = StoredSample(index, row), index.sample_row(row)
    shard = str(index.shard_path(int(index.columns["shard"][row])))
    meta = sample.meta()
    return ViewedTrace(
        name=shown_name(table.question_id, meta.get("trace")),
        source=f"{path}, {SPLITS[int(index.columns['split'][row])]}",
        slug=table.key,
        error=lambda detail: ShardError(f"sample {table.key}: {detail}", shard=shard),
        stored=True,
        texts=shown_texts(meta.get("token_texts"), meta.get("tokens"), table.tokens),
        prompt_length=None if table.prompt_length < 0 else table.prompt_length,
        answer=str(meta.get("answer") or ""),
        hidden=np.asarray(sample.states(), np.float32),
        label=None if np.isnan(table.label) else table.label,
        score=None if np.isnan(table.score) else table.score,
        full=sample.array("full") if sample.has("full") else None,
        kept=ReducedAttention(
            num_layers=index.num_layers,
            num_heads=index.num_heads,
            edges=sample.edges(),
            edge_rule=index.file.provenance.edge_rule,
            heads=sample.heads(),
            head_threshold=index.file.provenance.head_threshold,
            sketch=sample.sketch(),
        ),
        model_layers=index.model_layers,
    )
