"""One batch: rows of the index to a :class:`wdsbench.records.Batch`, by one C++ call a field."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.errors import DecodeError, ShardError
from wdsbench.loader.graph import graph_batch
from wdsbench.loader.select import TokenRanges
from wdsbench.records import Batch
from wdsbench.ring import SlabPool
from wdsbench.shards.index import DatasetIndex
from wdsbench.shards.members import (
    EDGES_INDEX,
    EDGES_POINTER,
    EDGES_WEIGHT,
    HIDDEN,
    HIDDEN_SCALE,
    META,
)
from wdsbench.stream.files import ShardFiles


@dataclass(frozen=True)
class DecodePlan:
    """What every batch of a loader has in common.

    Attributes:
        fields: Names asked for.
        layers: Wanted layers, int64.
        ranges: Wanted tokens of every row.
        layout: stack, pad, jagged or graph.
        squeeze: One token was asked for: its axis is left out.
        threads: Decode threads.
        verify_hash: Check XXH3 of members that are read whole.
    """

    fields: tuple[str, ...]
    layers: NDArray[np.int64]
    ranges: TokenRanges
    layout: str
    squeeze: bool
    threads: int
    verify_hash: bool


class _Place(TypedDict):
    shard: str
    member: str


@dataclass(frozen=True)
class BatchSlabs:
    """Memory of the large tensors of a loader's batches, kept from epoch to epoch."""

    states: SlabPool = field(default_factory=SlabPool)
    edge_index: SlabPool = field(default_factory=SlabPool)
    edge_attr: SlabPool = field(default_factory=SlabPool)


class BatchDecoder:
    """Decodes batches of one data set by one plan; belongs to one iteration of one process."""

    def __init__(self, index: DatasetIndex, plan: DecodePlan, slabs: BatchSlabs) -> None:
        self._index = index
        self._plan = plan
        self._files = ShardFiles(index)
        self._slabs = slabs
        stored = index.fields["hidden"]
        self._bf16 = stored.dtype == "bf16"
        element_bytes = 2 if self._bf16 else np.dtype(stored.dtype).itemsize
        self._token_bytes = index.num_features * element_bytes
        self.bytes_read = 0

    def __call__(self, row_list: list[int]) -> Batch:
        """Return the batch of these rows, in this order.

        Raises:
            ShardError: A shard cannot be read; DecodeError: a member is damaged. Shard, member and
                byte are named.
        """
        rows = np.asarray(row_list, np.int64)
        columns = self._index.columns
        fds = np.asarray(self._files.descriptors(columns["shard"][rows].tolist()), np.int64)
        batch = Batch(
            label=torch.from_numpy(columns["label"][rows]),
            score=torch.from_numpy(columns["score"][rows]),
            token_count=torch.from_numpy(columns["tokens"][rows].astype(np.int64)),
            prompt_length=torch.from_numpy(columns["prompt_length"][rows].astype(np.int64)),
            question_ids=self._index.question_ids(rows),
            keys=self._index.keys(rows),
        )
        if self._plan.layout == "graph":
            self._add_graph(batch, rows, fds)
        elif "hidden" in self._plan.fields:
            self._add_hidden(batch, rows, fds)
        if "meta" in self._plan.fields or "logprobs" in self._plan.fields:
            metas = [self._read_meta(row, int(fd)) for row, fd in zip(row_list, fds, strict=True)]
            if "meta" in self._plan.fields:
                batch.meta = metas
            if "logprobs" in self._plan.fields:
                batch.logprobs = [_logprobs(meta) for meta in metas]
        return batch

    def _add_hidden(self, batch: Batch, rows: NDArray[np.int64], fds: NDArray[np.int64]) -> None:
        plan = self._plan
        lengths = plan.ranges.count[rows]
        layers, features = plan.layers.size, self._index.num_features
        starts = np.concatenate([[0], np.cumsum(lengths)])
        if plan.layout == "jagged":
            shape: tuple[int, ...] = (layers, int(starts[-1]), features)
            stride, targets, padded = int(starts[-1]) * features, starts[:-1] * features, 0
            batch.offsets = torch.from_numpy(starts)
            batch.lengths = torch.from_numpy(lengths)
        else:
            padded = int(lengths.max())
            shape = (len(rows), layers, padded, features)
            stride = padded * features
            targets = np.arange(len(rows), dtype=np.int64) * layers * stride
            if plan.layout == "pad":
                batch.lengths = torch.from_numpy(lengths)
            if plan.squeeze:
                shape = (len(rows), layers, features)
        batch.hidden = self._decode_rows(rows, fds, targets, stride, padded, shape)

    def _add_graph(self, batch: Batch, rows: NDArray[np.int64], fds: NDArray[np.int64]) -> None:
        plan = self._plan
        layers, features = plan.layers.size, self._index.num_features
        tokens = self._index.columns["tokens"][rows].astype(np.int64)
        node_base = np.concatenate([[0], np.cumsum(tokens * layers)])
        x = self._decode_rows(
            rows,
            fds,
            node_base[:-1] * features,
            tokens * features,
            0,
            (int(node_base[-1]), features),
        )
        jobs = self._jobs(
            rows,
            fds,
            [(EDGES_INDEX, "offset"), (EDGES_INDEX, "size"), (EDGES_WEIGHT, "offset"),
            (EDGES_WEIGHT, "size"),
             (EDGES_POINTER, "offset"), (EDGES_POINTER, "size")],
            [tokens, node_base[:-1], np.zeros_like(tokens)],
        )  # fmt: skip
        for member in (EDGES_INDEX, EDGES_WEIGHT, EDGES_POINTER):
            self._verify(rows, fds, member)
        pointers = self._located(
            rows,
            lambda: _core.read_edge_pointers(
                jobs, layers_stored=self._index.num_layers, threads=plan.threads
            ),
        )
        edge_counts = (pointers[:, plan.layers + 1] - pointers[:, plan.layers]).astype(np.int64)
        edge_base = np.concatenate([[0], np.cumsum(edge_counts.sum(axis=1))])
        jobs[:, -1] = edge_base[:-1]
        edge_index = self._slabs.edge_index.tensor((2, int(edge_base[-1])), torch.int64)
        edge_attr = self._slabs.edge_attr.tensor((int(edge_base[-1]), 1))
        self._located(
            rows,
            lambda: _core.collate_edges(
                jobs,
                plan.layers,
                pointers=pointers,
                edge_index=edge_index.numpy(),
                edge_attr=edge_attr.view(-1).numpy(),
                threads=plan.threads,
            ),
        )
        batch.graph = graph_batch(
            x, edge_index, edge_attr, np.repeat(tokens, layers), edge_counts.reshape(-1)
        )

    def _decode_rows(
        self,
        rows: NDArray[np.int64],
        fds: NDArray[np.int64],
        targets: NDArray[np.int64],
        stride: int | NDArray[np.int64],
        padded: int,
        shape: tuple[int, ...],
    ) -> torch.Tensor:
        """Decode hidden states into a new float32 tensor of ``shape``; samples start at
        ``targets``.

        ``stride`` (elements from layer to layer) is one number, or one a sample.
        """
        plan, index = self._plan, self._index
        out = self._slabs.states.tensor(shape)
        jobs = self._jobs(
            rows,
            fds,
            [
                (HIDDEN, "offset"),
                (HIDDEN, "size"),
                (HIDDEN_SCALE, "offset"),
                (HIDDEN_SCALE, "size"),
            ],
            [
                index.columns["state_tokens"][rows].astype(np.int64),
                plan.ranges.first[rows],
                plan.ranges.count[rows],
                targets,
                np.broadcast_to(np.asarray(stride, np.int64), rows.shape),
            ],
        )
        self._located(
            rows,
            lambda: _core.decode_rows(
                jobs,
                plan.layers,
                layers_stored=index.num_layers,
                features=index.num_features,
                token_padded=padded,
                bf16=self._bf16,
                out=out.view(-1).numpy(),
                threads=plan.threads,
            ),
        )
        self.bytes_read += int(plan.ranges.count[rows].sum()) * plan.layers.size * self._token_bytes
        if plan.layers.size == index.num_layers:
            whole = plan.ranges.count[rows] == index.columns["state_tokens"][rows]
            self._verify(rows[whole], fds[whole], HIDDEN)
        return out

    def _jobs(
        self,
        rows: NDArray[np.int64],
        fds: NDArray[np.int64],
        members: list[tuple[str, str]],
        rest: list[NDArray[np.int64]],
    ) -> NDArray[np.int64]:
        jobs = np.empty((rows.size, 1 + len(members) + len(rest)), np.int64)
        jobs[:, 0] = fds
        for i, (member, part) in enumerate(members, start=1):
            jobs[:, i] = self._index.member(member, part)[rows]
        for i, column in enumerate(rest, start=1 + len(members)):
            jobs[:, i] = column
        return jobs

    def _located(self, rows: NDArray[np.int64], work: Callable[[], Any]) -> Any:
        """Run ``work`` and name shard and member in what it raises."""
        try:
            return work()
        except _core.FormatError as error:
            row = int(rows[error.sample or 0])
            kind = ShardError if error.kind in ("truncated", "io") else DecodeError
            raise kind(
                error.detail,
                **self._place(row, f"{error.member}.npy"),
                offset_bytes=error.offset_bytes,
            ) from error

    def _place(self, row: int, member: str) -> _Place:
        """Return where a member lies, as the arguments of our errors."""
        shard = int(self._index.columns["shard"][row])
        return {
            "shard": str(self._index.shard_path(shard)),
            "member": self._index.member_name(row, member),
        }

    def _verify(self, rows: NDArray[np.int64], fds: NDArray[np.int64], member: str) -> None:
        """Compare the XXH3 of whole members with the index where the plan asks for it."""
        if not self._plan.verify_hash:
            return
        expected = self._index.member(member, "xxh3")
        for row, fd in zip(rows.tolist(), fds.tolist(), strict=True):
            if xxhash.xxh3_64_intdigest(self._read(row, fd, member)) != int(expected[row]):
                raise DecodeError(
                    "the bytes are not those that were packed (XXH3 differs); restore the shard or"
                    " pack again",
                    **self._place(row, member),
                    offset_bytes=int(self._index.member(member, "offset")[row]),
                )

    def _read(self, row: int, fd: int, member: str) -> bytes:
        offset = int(self._index.member(member, "offset")[row])
        size = int(self._index.member(member, "size")[row])
        data = os.pread(fd, size, offset)
        if len(data) != size:
            raise ShardError(
                f"the file ends {size - len(data)} bytes before the member does",
                **self._place(row, member),
                offset_bytes=offset + len(data),
            )
        return data

    def _read_meta(self, row: int, fd: int) -> dict[str, Any]:
        try:
            meta = json.loads(self._read(row, fd, META))
        except ValueError as error:
            raise DecodeError(
                f"not JSON: {error}",
                **self._place(row, META),
            ) from error
        assert isinstance(meta, dict)
        return meta


def _logprobs(meta: dict[str, Any]) -> NDArray[np.float32] | None:
    values = meta["token_logprobs"]
    if values is None:
        return None
    return np.array([-np.inf if value is None else value for value in values], np.float32)
