"""A trace of a packed data set: the members of one sample; nothing else of the shards is read."""

from __future__ import annotations

import numpy as np

from wdsbench.errors import ShardError
from wdsbench.records import SPLITS, ReducedAttention
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.sample import StoredSample
from wdsbench.view.trace import ViewedTrace, shown_name


def read_stored(index: DatasetIndex, row: int, path: str) -> ViewedTrace:
    """Return the sample of one row of the index.

    Args:
        index: The data set.
        row: Row of the sample.
        path: Name of the data set for people.

    Raises:
        ShardError: A member cannot be read, or does not fit the sample.
    """
    sample, table = StoredSample(index, row), index.sample_row(row)
    shard = str(index.shard_path(int(index.columns["shard"][row])))
    tokens, meta = table.tokens, sample.meta()
    texts = meta.get("token_texts") or [f"#{number}" for number in meta.get("tokens") or ()]
    return ViewedTrace(
        name=shown_name(table.question_id, meta.get("trace")),
        source=f"{path}, {SPLITS[int(index.columns['split'][row])]}",
        slug=table.key,
        error=lambda detail: ShardError(f"sample {table.key}: {detail}", shard=shard),
        stored=True,
        texts=texts if len(texts) == tokens else [f"token {i}" for i in range(tokens)],
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
    """Return edges, heads and sketch of a sample, as far as they are stored."""
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
