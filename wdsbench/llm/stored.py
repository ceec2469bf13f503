"""Random stored traces of raw files or data sets, for module ``recompute``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench.records import EdgeLists
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.sample import StoredSample
from wdsbench.traces.files import expand_patterns
from wdsbench.traces.read import read_traces


@dataclass(frozen=True)
class StoredTrace:
    """Stored data of one trace, read from shards or raw files."""

    place: str  # file or shard, and the trace in it
    question_id: str
    tokens: list[int]  # token ids ``[T]``
    prompt_length: int | None  # tokens of the prompt; None: unknown
    hidden: NDArray[Any] | None  # ``[L, t, D]`` of the last t tokens; None if reduced to components
    logprobs: NDArray[np.float32] | None  # float32 ``[T - prompt_length]``, or None
    maps: list[NDArray[Any]] | None  # L arrays ``[H, T, T]``, or None
    edges: EdgeLists | None  # edges of the mean over heads, one list per layer; or None
    edge_rule: str | None  # rule of these edges; None: unknown
    heads: EdgeLists | None  # edges of each head, list ``layer * H + head``; or None
    head_threshold: float | None  # least weight of these; None: unknown
    layers: tuple[int, ...] | None = None  # numbers of the L layers in the model; None: all


def pick_from_dataset(source: DatasetIndex, count: int, seed: int = 0) -> list[StoredTrace]:
    """Return ``count`` random samples of a data set, or all if it has fewer."""
    rows = np.random.default_rng(seed).permutation(len(source))[:count]
    return [_from_shard(source, int(row)) for row in np.sort(rows)]


def pick_from_raw(patterns: Sequence[str | Path], count: int, seed: int = 0) -> list[StoredTrace]:
    """Return ``count`` random traces of raw files.

    At most ``count`` files are read. Files are drawn uniformly, then traces within each, so that
    traces of short files are a little more likely.
    """
    random = np.random.default_rng(seed)
    files = expand_patterns(patterns)
    drawn = random.integers(0, len(files), count).tolist()
    if count >= len(files):  # at least one trace of every file
        drawn = [*range(len(files)), *drawn[: count - len(files)]]
    picked: list[StoredTrace] = []
    for number in sorted(set(drawn)):
        kept: list[StoredTrace] = []
        wanted = drawn.count(number)
        for place, trace in enumerate(read_traces(files[number])):
            slot = place if place < wanted else int(random.integers(0, place + 1))
            if slot < wanted:  # algorithm R: all traces are equally likely
                kept[slot : slot + 1] = [_from_raw(trace)]
        picked += kept
    return picked


def _from_raw(trace: Any) -> StoredTrace:
    reduced = trace.reduced
    return StoredTrace(
        place=f"{trace.file}, trace {trace.position}",
        question_id=trace.question_id,
        tokens=trace.tokens.tolist(),
        prompt_length=trace.prompt_length,
        hidden=trace.hidden,
        logprobs=trace.token_logprobs,
        maps=trace.attentions,
        edges=None if reduced is None else reduced.edges,
        edge_rule=None if reduced is None else reduced.edge_rule,
        heads=None if reduced is None else reduced.heads,
        head_threshold=None if reduced is None else reduced.head_threshold,
        layers=trace.layers,
    )


def _from_shard(index: DatasetIndex, row: int) -> StoredTrace:
    sample = StoredSample(index, row)
    table, provenance = index.sample_row(row), index.file.provenance
    shard = index.file.shardlist[int(index.columns["shard"][row])].url
    meta, maps = sample.meta(), sample.maps()
    return StoredTrace(
        place=f"{shard}, sample {table.key}",
        question_id=table.question_id,
        tokens=[int(token) for token in meta.get("tokens") or ()],
        prompt_length=None if table.prompt_length < 0 else table.prompt_length,
        hidden=None if provenance.reduction else sample.states(),
        logprobs=sample.logprobs(meta),
        maps=None if maps is None else list(maps),
        edges=sample.edges(),
        edge_rule=provenance.edge_rule,
        heads=sample.heads(),
        head_threshold=provenance.head_threshold,
        layers=index.model_layers,
    )
