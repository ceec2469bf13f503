"""One batch: rows of the index to a :class:`wdsbench.records.Batch`.

The hidden states are decoded in the background: ``start`` returns while C++ threads fill the
tensor, ``tensors`` waits for them. What else a batch holds comes from the index (``assemble``). A
worker process does the first two and its training process the last, over the same slab.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.loader.graph import graph_batch
from wdsbench.loader.members import MemberBytes
from wdsbench.loader.plan import DecodePlan, RowsLayout, element_bytes, rows_layout
from wdsbench.records import Batch
from wdsbench.shards.format.kinds import (
    EDGES_INDEX,
    EDGES_POINTER,
    EDGES_WEIGHT,
    HEADS_INDEX,
    HEADS_POINTER,
    HEADS_WEIGHT,
    HIDDEN,
    HIDDEN_SCALE,
    SKETCH,
    SKETCH_VALUES,
)
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.slabs import SlabPool

EDGE_MEMBERS = {"index": EDGES_INDEX, "weight": EDGES_WEIGHT, "pointer": EDGES_POINTER}
HEAD_MEMBERS = {"index": HEADS_INDEX, "weight": HEADS_WEIGHT, "pointer": HEADS_POINTER}


class Memory(Protocol):
    """Where the large tensors of a batch are placed, in the order in which they are asked for."""

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype = ...) -> torch.Tensor:
        """Return a C-contiguous host tensor."""


@dataclass
class BatchTensors:
    """What of a batch is read from shards.

    Attributes:
        hidden: float32 (or float16 as stored) in the layout's shape; None where not asked for.
        scales: float32 ``[B, layers]``: factors yet to be applied to 16-bit states, or None.
        edge_index: int64 ``[2, E]`` (graph layouts).
        edge_attr: float32 ``[E, 1]`` (layout graph) or ``[E, layers * H]`` (union-graph).
        edge_counts: int64 ``[B * layers]`` or ``[B]``: edges of each graph (graph layouts).
        metas: B ``meta.json`` dicts, where a field needs them.
        sketches: B arrays ``[layers, H, T, 4]`` (field sketch).
    """

    hidden: torch.Tensor | None = None
    scales: torch.Tensor | None = None
    edge_index: torch.Tensor | None = None
    edge_attr: torch.Tensor | None = None
    edge_counts: NDArray[np.int64] | None = None
    metas: list[dict[str, Any]] | None = None
    sketches: list[NDArray[np.float32]] | None = None


@dataclass
class PendingBatch:
    """A batch whose hidden states are being decoded.

    Attributes:
        rows: int64 ``[B]``: rows of the index.
        layout: Of the hidden states.
        memory: Where further tensors go.
        hidden: The tensor that is filled.
        run: The decode; None where no states were asked for.
    """

    rows: NDArray[np.int64]
    layout: RowsLayout
    memory: Memory
    hidden: torch.Tensor | None = None
    run: _core.RowsInFlight | None = None


class BatchPools:
    """Reused memory of a loader's batches in the training process."""

    def __init__(self, states_bytes: int, edges_bytes: int) -> None:
        self._states = SlabPool(states_bytes)
        self._edges = SlabPool(edges_bytes), SlabPool(edges_bytes)

    def batch(self) -> PoolMemory:
        """Return the memory of one batch."""
        return PoolMemory([self._states, *self._edges])


@dataclass
class PoolMemory:
    """A batch's first tensor comes from the first pool, and so on.

    Attributes:
        pools: In the order in which tensors are asked for.
        taken: Tensors given out.
        ordinary: Whether one of them had to come in ordinary memory.
    """

    pools: list[SlabPool]
    taken: int = 0
    ordinary: bool = False

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the next tensor."""
        pool = self.pools[self.taken]
        before = pool.ordinary
        tensor = pool.tensor(shape, dtype)
        self.taken += 1
        self.ordinary |= pool.ordinary > before
        return tensor


class BatchDecoder:
    """Decodes batches of one data set by one plan.

    Attributes:
        bytes_read: Payload bytes of hidden states decoded so far.
    """

    def __init__(self, index: DatasetIndex, plan: DecodePlan, files: _core.ShardFiles) -> None:
        self._index = index
        self._plan = plan
        self._files = files
        self._members = MemberBytes(index, files)
        self._token_bytes = index.num_features * element_bytes(index) * plan.layers.size
        self._scaled = bool(index.member(HIDDEN_SCALE, "size").any())
        self.bytes_read = 0

    def start(self, row_list: list[int], memory: Memory) -> PendingBatch:
        """Begin with the batch of these rows, in this order.

        Raises:
            ShardError: A shard cannot be opened.
        """
        rows = np.array(row_list, np.int64)
        pending = PendingBatch(
            rows, rows_layout(self._plan, self._index.num_features, rows), memory
        )
        if self._plan.has_states:
            self._start_states(pending)
        return pending

    def tensors(self, pending: PendingBatch) -> BatchTensors:
        """Return what is read of the batch, once all of it stands in memory.

        Raises:
            ShardError: A shard cannot be read; DecodeError: a member is damaged. Shard, member and
                byte are named.
        """
        rows = pending.rows
        tensors = BatchTensors(hidden=pending.hidden)
        if pending.run is not None:
            self._members.located(rows, pending.run.wait)
            self.bytes_read += int(pending.layout.lengths.sum()) * self._token_bytes
            self._verify_states(rows)
        if self._plan.raw and self._scaled:
            scales = self._members.located(rows, lambda: self._read_scales(pending))
            tensors.scales = torch.from_numpy(scales)
        if self._plan.layout == "graph":
            self._add_edges(tensors, pending)
        if self._plan.layout == "union-graph":
            self._add_union(tensors, pending)
        if "meta" in self._plan.fields or "logprobs" in self._plan.fields:
            tensors.metas = [self._members.read_meta(row) for row in rows.tolist()]
        if "sketch" in self._plan.fields:
            tensors.sketches = [self._read_sketch(row) for row in rows.tolist()]
        return tensors

    def placed(
        self, rows: NDArray[np.int64], edge_counts: NDArray[np.int64] | None, memory: Memory
    ) -> BatchTensors:
        """Return the tensors that another process has filled in the same memory."""
        tensors = BatchTensors(edge_counts=edge_counts)
        if self._plan.has_states:
            layout = rows_layout(self._plan, self._index.num_features, rows)
            tensors.hidden = memory.tensor(layout.shape, self._states_dtype())
        if edge_counts is not None:
            self._place_edges(tensors, edge_counts, memory)
        return tensors

    def assemble(self, rows: NDArray[np.int64], tensors: BatchTensors) -> Batch:
        """Return the batch: tensors that were read, everything else from the index."""
        plan, columns = self._plan, self._index.columns
        batch = Batch(
            label=torch.from_numpy(columns["label"][rows]),
            score=torch.from_numpy(columns["score"][rows]),
            token_count=torch.from_numpy(columns["tokens"][rows].astype(np.int64)),
            prompt_length=torch.from_numpy(columns["prompt_length"][rows].astype(np.int64)),
            question_ids=self._index.question_ids(rows),
            keys=self._index.keys(rows),
        )
        if plan.has_edges:
            assert tensors.edge_counts is not None
            assert tensors.hidden is not None
            assert tensors.edge_index is not None
            assert tensors.edge_attr is not None
            x, nodes = tensors.hidden, plan.ranges.count[rows]
            if plan.layout == "graph":
                nodes = np.repeat(nodes, plan.layers.size)
            else:  # decoded layer after layer; a node has the states of all
                x = x.permute(1, 0, 2)
            batch.graph = graph_batch(
                x, tensors.edge_index, tensors.edge_attr, nodes, tensors.edge_counts
            )
        else:
            batch.hidden = tensors.hidden
            if plan.has_states and plan.layout != "stack":
                layout = rows_layout(plan, self._index.num_features, rows)
                batch.lengths = torch.from_numpy(layout.lengths)
                if layout.offsets is not None:
                    batch.offsets = torch.from_numpy(layout.offsets)
        batch.hidden_scale = tensors.scales
        if tensors.sketches is not None:
            batch.sketch = [torch.from_numpy(values) for values in tensors.sketches]
        if tensors.metas is not None:
            if "meta" in plan.fields:
                batch.meta = tensors.metas
            if "logprobs" in plan.fields:
                batch.logprobs = [_logprobs(meta) for meta in tensors.metas]
        return batch

    def _states_dtype(self) -> torch.dtype:
        return torch.float16 if self._plan.raw else torch.float32

    def _start_states(self, pending: PendingBatch) -> None:
        plan, index = self._plan, self._index
        dtype = self._states_dtype()
        pending.hidden = pending.memory.tensor(pending.layout.shape, dtype)
        out = pending.hidden.view(-1)
        pending.run = self._members.located(
            pending.rows,
            lambda: _core.start_rows(
                self._files,
                self._state_jobs(pending),
                plan.layers,
                layers_stored=index.num_layers,
                features=index.num_features,
                token_padded=pending.layout.padded,
                out=out.view(torch.uint16).numpy() if plan.raw else out.numpy(),
                threads=plan.threads,
            ),
        )

    def _state_jobs(self, pending: PendingBatch) -> NDArray[np.int64]:
        rows, ranges, layout = pending.rows, self._plan.ranges, pending.layout
        tokens = self._index.columns["state_tokens"][rows]
        return self._jobs(
            _core.ROWS_COLUMNS,
            rows,
            {"hidden": HIDDEN, "scale": HIDDEN_SCALE},
            tokens_stored=tokens,
            token_first=ranges.first[rows],
            token_count=layout.lengths,
            target=layout.targets,
            layer_stride=layout.strides,
        )

    def _read_scales(self, pending: PendingBatch) -> NDArray[np.float32]:
        return _core.read_scales(
            self._files,
            self._state_jobs(pending),
            self._plan.layers,
            layers_stored=self._index.num_layers,
        )

    def _add_edges(self, tensors: BatchTensors, pending: PendingBatch) -> None:
        plan, rows = self._plan, pending.rows
        assert pending.layout.offsets is not None
        nodes = pending.layout.offsets[:-1]
        jobs = self._jobs(
            _core.EDGES_COLUMNS,
            rows,
            EDGE_MEMBERS,
            tokens=pending.layout.lengths,
            node_base=nodes,
            edge_base=0,
        )
        if plan.verify_hash:
            for member in EDGE_MEMBERS.values():
                self._members.verify(rows, member)
        pointers = self._members.located(
            rows,
            lambda: _core.read_edge_pointers(
                self._files, jobs, layers_stored=self._index.num_layers, threads=plan.threads
            ),
        )
        counts = (pointers[:, plan.layers + 1] - pointers[:, plan.layers]).astype(np.int64)
        jobs[1:, _core.EDGES_COLUMNS.index("edge_base")] = np.cumsum(counts.sum(axis=1))[:-1]
        edge_index, edge_attr = self._place_edges(tensors, counts.reshape(-1), pending.memory)
        self._members.located(
            rows,
            lambda: _core.collate_edges(
                self._files,
                jobs,
                plan.layers,
                pointers=pointers,
                edge_index=edge_index.numpy(),
                edge_attr=edge_attr.view(-1).numpy(),
                threads=plan.threads,
            ),
        )

    def _place_edges(
        self, tensors: BatchTensors, counts: NDArray[np.int64], memory: Memory
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Ask for the edges' tensors, in the order on which both sides of a slab rely."""
        edges = int(counts.sum())
        edge_index = memory.tensor((2, edges), torch.int64)
        edge_attr = memory.tensor((edges, self._plan.edge_channels))
        tensors.edge_index, tensors.edge_attr, tensors.edge_counts = edge_index, edge_attr, counts
        return edge_index, edge_attr

    def _add_union(self, tensors: BatchTensors, pending: PendingBatch) -> None:
        plan, rows, lengths = self._plan, pending.rows, pending.layout.lengths
        assert pending.layout.offsets is not None
        nodes = pending.layout.offsets[:-1]
        prompt = self._index.columns["prompt_length"][rows]
        jobs = self._jobs(
            _core.HEADS_COLUMNS,
            rows,
            HEAD_MEMBERS,
            tokens=lengths,
            node_base=nodes,
            edge_base=0,
            prompt_length=prompt,
        )
        if plan.verify_hash:
            for member in HEAD_MEMBERS.values():
                self._members.verify(rows, member)
        sizes = {
            "layers_stored": self._index.num_layers,
            "heads": plan.heads,
            "threads": max(plan.threads, 1),
        }
        counts = self._members.located(
            rows, lambda: _core.count_union_edges(self._files, jobs, plan.layers, **sizes)
        )
        jobs[1:, _core.HEADS_COLUMNS.index("edge_base")] = np.cumsum(counts)[:-1]
        edge_index, edge_attr = self._place_edges(tensors, counts, pending.memory)
        self._members.located(
            rows,
            lambda: _core.collate_union(
                self._files,
                jobs,
                plan.layers,
                edge_index=edge_index.numpy(),
                edge_attr=edge_attr.numpy(),
                **sizes,
            ),
        )

    def _read_sketch(self, row: int) -> NDArray[np.float32]:
        tokens = int(self._index.columns["tokens"][row])
        shape = (self._index.num_layers, self._plan.heads, tokens, len(SKETCH_VALUES))
        values = self._members.read_array(row, SKETCH, np.float16, shape)
        return values[self._plan.layers].astype(np.float32)

    def _verify_states(self, rows: NDArray[np.int64]) -> None:
        """Check the hashes of members that were read whole, where the plan asks for it."""
        if self._plan.verify_hash and self._plan.layers.size == self._index.num_layers:
            whole = self._plan.ranges.count[rows] == self._index.columns["state_tokens"][rows]
            self._members.verify(rows[whole], HIDDEN)

    def _jobs(
        self,
        columns: tuple[str, ...],
        rows: NDArray[np.int64],
        members: Mapping[str, str],
        **values: NDArray[Any] | int,
    ) -> NDArray[np.int64]:
        """Return a job table, a row per sample: shard, places of members, and ``values``."""
        values["shard"] = self._index.columns["shard"][rows]
        for name, member in members.items():
            for part in ("offset", "size"):
                values[f"{name}_{part}"] = self._index.member(member, part)[rows]
        jobs = np.empty((rows.size, len(columns)), np.int64)
        for column, name in enumerate(columns):
            jobs[:, column] = values[name]
        return jobs


def _logprobs(meta: dict[str, Any]) -> NDArray[np.float32] | None:
    values = meta["token_logprobs"]
    if values is None:
        return None
    return np.array([-np.inf if value is None else value for value in values], np.float32)
