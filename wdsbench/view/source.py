"""Finds one trace in a packed data set or in a raw file.

Whole maps are reduced by the packer's rules, so that a graph shows the edges that a detector reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from wdsbench.errors import ShardError
from wdsbench.records import SPLITS, ReducedAttention
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.open import open_index
from wdsbench.shards.read.sample import StoredSample
from wdsbench.traces.attention import AttentionRules, MapError, as_maps, join_layers, reduce_maps
from wdsbench.traces.files import kind_of
from wdsbench.view.raw import read_raw
from wdsbench.view.trace import ViewedTrace, shown_name, shown_texts


@dataclass(frozen=True)
class Wanted:
    """The requested trace, by at most one of the three; by default the first.

    Attributes:
        trace: Its place, from 0: row of the index, or place in the raw file.
        sample: Its member key (packed data sets only).
        question: Its question id, for the first trace of that question.
    """

    trace: int | None = None
    sample: str | None = None
    question: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if several traces are named, or a negative place."""
        given = [
            name for name in ("trace", "sample", "question") if getattr(self, name) is not None
        ]
        if len(given) > 1:
            raise ValueError(f"{' and '.join('--' + name for name in given)}: give one of them")
        if self.trace is not None and self.trace < 0:
            raise ValueError(f"--trace {self.trace}: places count from 0")


def open_trace(path: str | Path, wanted: Wanted) -> tuple[ViewedTrace, DatasetIndex | None]:
    """Return the trace of a data set (folder, tar files) or raw file, and the index of the former.

    Raises:
        ValueError: There is no such trace.
        ShardError, TraceError: Nothing can be read there.
    """
    given = Path(path)
    if kind_of(given) is not None and not given.is_dir():
        if wanted.sample is not None:
            raise ValueError(
                f"--sample {wanted.sample}: {path} is a raw file, whose traces have no key; use"
                " --trace or --question"
            )
        return with_edges(read_raw(given, wanted.trace, wanted.question)), None
    index = open_index(path)
    row = _row(index, wanted, str(path))
    return with_edges(read_stored(index, row, str(path))), index


def with_edges(trace: ViewedTrace) -> ViewedTrace:
    """Return the trace with edges and sketch of its maps, if it has only maps."""
    kept, full = trace.kept, trace.full
    missing = [
        kind
        for kind, have in (
            ("edges", kept is not None and kept.edges is not None),
            ("sketch", kept is not None and kept.sketch is not None),
        )
        if not have
    ]
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
    if kept is None:
        return replace(trace, kept=made)
    both = replace(
        kept,
        edges=kept.edges or made.edges,
        edge_rule=kept.edge_rule if kept.edges is not None else made.edge_rule,
        sketch=made.sketch if kept.sketch is None else kept.sketch,
    )
    return replace(trace, kept=both)


def read_stored(index: DatasetIndex, row: int, path: str) -> ViewedTrace:
    """Return the sample of one row of the index; ShardError if it cannot be read."""
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
        kept=_kept(sample),
        model_layers=index.model_layers,
    )


def _kept(sample: StoredSample) -> ReducedAttention | None:
    """Return the stored edges, heads and sketch of a sample; None without any."""
    edges, heads, sketch = sample.edges(), sample.heads(), sample.sketch()
    if edges is None and heads is None and sketch is None:
        return None
    provenance = sample.index.file.provenance
    return ReducedAttention(
        num_layers=sample.index.num_layers,
        num_heads=sample.index.num_heads,
        edges=edges,
        edge_rule=None if edges is None else provenance.edge_rule,
        heads=heads,
        head_threshold=None if heads is None else provenance.head_threshold,
        sketch=sketch,
    )


def _row(index: DatasetIndex, wanted: Wanted, path: str) -> int:
    """Return the row of the wanted sample."""
    total = len(index)
    if wanted.question is not None or wanted.sample is not None:
        rows = np.arange(total)
        by_key = wanted.sample is not None
        names = index.keys(rows) if by_key else index.question_ids(rows)
        name = wanted.sample if by_key else wanted.question
        if name in names:
            return names.index(name)
        some = ", ".join(names[:3])
        word = "sample" if by_key else "question"
        raise ValueError(f"--{word} {name}: not among the {total} traces of {path} ({some}, ...)")
    row = wanted.trace or 0
    if row >= total:
        raise ValueError(f"--trace {row}: {path} holds {total} traces, 0 to {total - 1}")
    return row
