"""Traces as they are stored, in raw files or data sets, picked at random: module ``recompute`` runs
them again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.errors import DecodeError, ShardError
from wdsbench.records import EdgeLists
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
)
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.traces.files import expand_patterns
from wdsbench.traces.read import read_traces


@dataclass(frozen=True)
class StoredTrace:
    """What is compared, from wherever it is stored.

    Attributes:
        place: File or shard, and which trace of it.
        question_id: Of the trace.
        tokens: int ``[T]``.
        prompt_length: None: unknown.
        hidden: ``[L, t, D]``, of the last t of T tokens; None where they are not the model's own
            (reduced to components).
        logprobs: float32 ``[T - prompt_length]`` or None.
        maps: L arrays ``[H, T, T]`` or None.
        edges: Of the mean over heads, a list a layer; or None.
        edge_rule: Their rule; None: unknown.
        heads: Of each head, list ``layer * H + head``; or None.
        head_threshold: Their least weight; None: unknown.
        layers: Which of the model's layers the L are; None: all of them.
    """

    place: str
    question_id: str
    tokens: list[int]
    prompt_length: int | None
    hidden: NDArray[Any] | None
    logprobs: NDArray[np.float32] | None
    maps: list[NDArray[Any]] | None
    edges: EdgeLists | None
    edge_rule: str | None
    heads: EdgeLists | None
    head_threshold: float | None
    layers: tuple[int, ...] | None = None


def pick_from_dataset(source: DatasetIndex, count: int, seed: int = 0) -> list[StoredTrace]:
    """Return ``count`` random samples of a data set (all, if it has fewer).

    Raises:
        ShardError: A sample cannot be read; ``wdsbench verify`` lists what is damaged.
    """
    _check_count(count)
    rows = np.random.default_rng(seed).permutation(len(source))[:count]
    return [_from_shard(source, int(row)) for row in np.sort(rows)]


def pick_from_raw(patterns: Sequence[str | Path], count: int, seed: int = 0) -> list[StoredTrace]:
    """Return ``count`` random traces of raw files.

    No more than ``count`` files are read: files are drawn first, each as likely as any other, then
    a trace in each, so that traces of short files are a little likelier.

    Raises:
        TraceError: A file cannot be read, or a trace in it is bad.
    """
    _check_count(count)
    random = np.random.default_rng(seed)
    files = expand_patterns(patterns)
    drawn = random.integers(0, len(files), count).tolist()
    if count >= len(files):  # every file has its share
        drawn = [*range(len(files)), *drawn[: count - len(files)]]
    picked: list[StoredTrace] = []
    for number in sorted(set(drawn)):
        kept: list[StoredTrace] = []
        wanted = drawn.count(number)
        for place, trace in enumerate(read_traces(files[number])):
            slot = place if place < wanted else int(random.integers(0, place + 1))
            if slot < wanted:  # algorithm R: every trace is as likely
                kept[slot : slot + 1] = [_from_raw(trace)]
        picked += kept
    return picked


def _check_count(count: int) -> None:
    if count < 1:
        raise ValueError(f"recompute: {count} traces; allowed are 1 and more")


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
    number = int(np.searchsorted(index.first_rows, row, side="right")) - 1
    shard = _Shard(index, number, row)
    meta = json.loads(shard.read(META) or b"{}")
    hidden = shard.array(HIDDEN)
    assert hidden is not None
    scale = shard.array(HIDDEN_SCALE)
    if scale is not None:
        hidden = hidden.astype(np.float32) * scale[:, None, None]
    logprobs = meta.get("token_logprobs")
    tokens = [int(token) for token in meta.get("tokens") or ()]
    halves = shard.array(ATTENTION)
    provenance = index.file.provenance
    threshold = provenance.head_threshold
    prompt = int(index.columns["prompt_length"][row])
    return StoredTrace(
        place=f"{shard.name}, sample {index.key(row)}",
        question_id=index.question_id(row),
        tokens=tokens,
        prompt_length=None if prompt < 0 else prompt,
        hidden=None if provenance.reduction else hidden,
        logprobs=None
        if logprobs is None
        else np.array([-np.inf if value is None else value for value in logprobs], np.float32),
        maps=None if halves is None else _whole_maps(halves, len(tokens)),
        edges=shard.edges(EDGES_INDEX, EDGES_WEIGHT, EDGES_POINTER),
        edge_rule=provenance.edge_rule,
        heads=shard.edges(HEADS_INDEX, HEADS_WEIGHT, HEADS_POINTER),
        head_threshold=None if threshold is None else float(threshold),
        layers=index.model_layers,
    )


@dataclass(frozen=True)
class _Shard:
    """The members of one sample."""

    index: DatasetIndex
    number: int
    row: int

    @property
    def name(self) -> str:
        return self.index.file.shardlist[self.number].url

    def read(self, member: str) -> bytes | None:
        """Return a member's bytes, or None where the sample has none."""
        offset, size = (
            int(self.index.member(member, part)[self.row]) for part in ("offset", "size")
        )
        if not size:
            return None
        path = self.index.shard_path(self.number)
        try:
            with path.open("rb") as file:
                data = os.pread(file.fileno(), size, offset)
                while 0 < len(data) < size and (
                    more := os.pread(file.fileno(), size - len(data), offset + len(data))
                ):
                    data += more
        except OSError as error:
            raise ShardError(f"cannot read: {error.strerror}", shard=str(path)) from error
        if len(data) < size:
            raise ShardError(
                "the shard ends here; `wdsbench verify` lists what is damaged",
                shard=str(path),
                member=self.index.member_name(self.row, member),
                offset_bytes=offset + len(data),
            )
        return data

    def array(self, member: str) -> NDArray[Any] | None:
        """Return an npy member."""
        data = self.read(member)
        if data is None:
            return None
        try:
            descr, shape, payload = _core.parse_npy_header(data, len(data))
        except _core.FormatError as error:
            raise DecodeError(
                error.detail,
                shard=self.name,
                member=self.index.member_name(self.row, member),
                offset_bytes=int(self.index.member(member, "offset")[self.row])
                + error.offset_bytes,
            ) from error
        return np.frombuffer(data, descr, offset=payload).reshape(shape)

    def edges(self, index: str, weight: str, pointer: str) -> EdgeLists | None:
        parts = [self.array(member) for member in (index, weight, pointer)]
        if parts[0] is None or parts[1] is None or parts[2] is None:
            return None
        return EdgeLists(parts[0], parts[1], parts[2])


def _whole_maps(halves: NDArray[Any], tokens: int) -> list[NDArray[Any]]:
    """Return maps ``[H, T, T]`` of their causal halves."""
    maps = np.zeros((*halves.shape[:2], tokens, tokens), halves.dtype)
    rows, columns = np.tril_indices(tokens)
    maps[:, :, rows, columns] = halves
    return list(maps)
