"""A trace out of a packed data set: the members of one sample, of all shards nothing else."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import DecodeError, ShardError
from wdsbench.records import SPLITS, EdgeLists, Member, ReducedAttention
from wdsbench.shards.format.kinds import (
    ATTENTION,
    EDGES_INDEX,
    EDGES_POINTER,
    EDGES_WEIGHT,
    HEADS_INDEX,
    HEADS_POINTER,
    HEADS_WEIGHT,
    HIDDEN,
    HIDDEN_SCALE,
    META,
    SKETCH,
)
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.sample import read_member
from wdsbench.stream.members import SampleMembers, load_member
from wdsbench.view.trace import ViewedTrace, shown_name

_EDGES = (EDGES_INDEX, EDGES_WEIGHT, EDGES_POINTER)
_HEADS = (HEADS_INDEX, HEADS_WEIGHT, HEADS_POINTER)


def read_stored(index: DatasetIndex, row: int, path: str) -> ViewedTrace:
    """Return the sample of one row of the index.

    Args:
        index: Of the data set.
        row: Of the sample.
        path: What the user calls the data set.

    Raises:
        ShardError: A member cannot be read, or members do not fit each other.
    """
    sample = SampleMembers(index).sample(row)
    key, tokens, prompt = sample["__key__"], sample["token_count"], sample["prompt_length"]
    meta = _meta(sample)
    texts = meta.get("token_texts") or [f"#{number}" for number in meta.get("tokens") or ()]
    trace_number = meta.get("trace")
    trace = ViewedTrace(
        name=shown_name(sample["question_id"], trace_number),
        source=f"{path}, {SPLITS[int(index.columns['split'][row])]}",
        slug=key,
        error=lambda detail: ShardError(f"sample {key}: {detail}", shard=sample["__url__"]),
        stored=True,
        texts=texts if len(texts) == tokens else [f"token {i}" for i in range(tokens)],
        prompt_length=None if prompt < 0 else prompt,
        answer=str(meta.get("answer") or ""),
        hidden=_states(sample),
        label=None if np.isnan(sample["label"]) else sample["label"],
        score=None if np.isnan(sample["score"]) else sample["score"],
        full=load_member(sample[ATTENTION]) if ATTENTION in sample else None,
        kept=_kept(index, sample),
        model_layers=index.model_layers,
    )
    _check(trace)
    return trace


def _meta(sample: dict[str, Any]) -> dict[str, Any]:
    member = sample.get(META)
    if member is None:
        return {}
    try:
        meta = json.loads(read_member(member))
        if isinstance(meta, dict):
            return meta
        detail = "not an object"
    except ValueError as error:
        detail = str(error)
    raise DecodeError(f"not the JSON of a trace: {detail}", shard=member.shard, member=member.name)


def _states(sample: dict[str, Any]) -> NDArray[np.float32]:
    hidden = load_member(sample[HIDDEN]).astype(np.float32)
    if HIDDEN_SCALE in sample:
        hidden = hidden * load_member(sample[HIDDEN_SCALE])[:, None, None]
    return hidden


def _kept(index: DatasetIndex, sample: dict[str, Any]) -> ReducedAttention | None:
    """Return edges, heads and sketch of a sample, as far as it has them."""
    edges = _lists(sample, _EDGES)
    heads = _lists(sample, _HEADS)
    sketch = load_member(sample[SKETCH]) if SKETCH in sample else None
    if edges is None and heads is None and sketch is None:
        return None
    provenance = index.file.provenance
    threshold = provenance.head_threshold
    return ReducedAttention(
        num_layers=index.num_layers,
        num_heads=index.num_heads if sketch is None else sketch.shape[1],
        edges=edges,
        edge_rule=None if edges is None else provenance.edge_rule,
        heads=heads,
        head_threshold=None if heads is None or threshold is None else float(threshold),
        sketch=sketch,
    )


def _lists(sample: dict[str, Any], names: tuple[str, str, str]) -> EdgeLists | None:
    members: list[Member] = [sample[name] for name in names if name in sample]
    if len(members) < len(names):
        return None
    index, weight, pointer = (load_member(member) for member in members)
    lists = EdgeLists(index, weight, pointer)
    bounds = pointer.astype(np.int64)
    ordered = bounds.ndim == 1 and bounds.size > 1 and (np.diff(bounds) >= 0).all()
    shaped = index.shape == (2, weight.size)
    if not (shaped and ordered and bounds[0] == 0 and bounds[-1] == weight.size) or bool(
        weight.size and (index[0] >= index[1]).any() | (index[1].max() >= sample["token_count"])
    ):
        raise DecodeError(
            "edges that do not fit each other or the trace; pack again",
            shard=members[0].shard,
            member=members[0].name,
        )
    return lists


def _check(trace: ViewedTrace) -> None:
    """Check what arrays of a store say of each other; a raw trace is checked by its reader.

    Raises:
        ShardError: A member has not the shape that layers and tokens ask for.
    """
    tokens, layers, kept = trace.num_tokens, trace.num_layers, trace.kept
    shape = trace.hidden.shape
    seen = [(HIDDEN, len(shape) == 3 and 1 <= shape[1] <= tokens)]
    if trace.full is not None:
        shape = trace.full.shape
        fits = len(shape) == 3 and (shape[0], shape[2]) == (layers, tokens * (tokens + 1) // 2)
        seen.append((ATTENTION, fits))
    if kept is not None:
        if kept.edges is not None:
            seen.append((EDGES_POINTER, len(kept.edges.pointer) == layers + 1))
        if kept.heads is not None:
            lists = layers * kept.num_heads + 1
            seen.append((HEADS_POINTER, len(kept.heads.pointer) == lists))
        if kept.sketch is not None:
            shape = kept.sketch.shape
            seen.append((SKETCH, len(shape) == 4 and shape[::2] == (layers, tokens)))
    for member, fits in seen:
        if not fits:
            raise trace.error(
                f"{member} does not fit {layers} layers of {tokens} tokens; pack again"
            )
