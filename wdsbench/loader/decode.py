"""Decodes batches: rows of the index to a :class:`wdsbench.records.Batch`.

Hidden states and images are decoded in the background: ``start`` returns while C++ threads fill the
tensor, ``tensors`` waits for them and reads the rest from the shards, ``assemble`` adds what the
index holds. A worker process does the first two and the training process the last, over the same
slab.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.errors import DecodeError, ShardError
from wdsbench.loader.layouts.layout import BatchTensors, Layout
from wdsbench.loader.plan import DecodePlan
from wdsbench.records import Batch
from wdsbench.shards.format.kinds import KINDS, TENSORS, loader_kinds
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.sample import StoredSample
from wdsbench.slabs import BatchMemory

#: Fields with an attribute of their own in a batch; those of other kinds are in ``extra``.
_ATTRIBUTES = ("logprobs", "meta", "sketch")

#: Stored dtypes that a device can widen.
RAW_DTYPES = {"<f2": torch.float16, "|u1": torch.uint8, "<u2": torch.uint16}

T = TypeVar("T")


@dataclass
class PendingBatch:
    """A batch whose states or images are incomplete until ``decode`` is done (None: none)."""

    tensors: BatchTensors
    memory: BatchMemory
    decode: _core.RowsInFlight | None = None

    @property
    def busy_seconds(self) -> float:
        """Seconds that threads have worked on the decode, summed."""
        return 0.0 if self.decode is None else self.decode.busy_seconds


def field_names() -> tuple[str, ...]:
    """Return the names that ``fields`` can have."""
    return (*TENSORS, "logprobs", "meta", *loader_kinds())


class BatchDecoder:
    """Decodes batches of one layout; ``bytes_read`` counts the payload of states or images."""

    def __init__(self, layout: Layout, files: _core.ShardFiles) -> None:
        plan = layout.plan
        self._index = plan.index
        self._plan = plan
        self._layout = layout
        self._files = files
        self._tensor = plan.index.tensor
        self._scale = TENSORS[self._tensor.name]
        self._images = self._tensor.name == "image"
        self._dtype = RAW_DTYPES[plan.stored_dtype.str] if plan.raw else torch.float32
        self._token_bytes = plan.stored_token_bytes
        self._scaled = plan.raw and bool(plan.index.member(self._scale, "size").any())
        self.bytes_read = 0

    def start(self, row_list: list[int], memory: BatchMemory) -> PendingBatch:
        """Start to decode the batch of these rows; ShardError if a shard cannot be opened."""
        plan = self._plan
        tensors = self._place(np.array(row_list, np.int64), memory)
        pending = PendingBatch(tensors, memory)
        if tensors.values is not None:
            out = tensors.values.view(-1)
            pending.decode = _located(
                self._index,
                tensors.rows,
                lambda: _core.start_rows(
                    self._files,
                    self._state_jobs(tensors),
                    plan.layers,
                    layers_stored=self._index.num_layers,
                    features=self._index.num_features,
                    token_padded=tensors.placement.padded,
                    out=_numbers(out),
                    threads=plan.threads,
                    images=self._images,
                ),
            )
        return pending

    def tensors(self, pending: PendingBatch) -> BatchTensors:
        """Wait for the decode and return the parts of the batch that are read from shards;
        ShardError if a shard cannot be read, DecodeError if a member is damaged.
        """
        index, plan, tensors = self._index, self._plan, pending.tensors
        rows = tensors.rows
        if pending.decode is not None:
            _located(index, rows, pending.decode.wait)
            self.bytes_read += int(tensors.placement.lengths.sum()) * self._token_bytes
            if plan.verify_hash and plan.layers.size == index.num_layers:
                whole = tensors.placement.lengths == index.columns["state_tokens"][rows]
                _verify_members(index, self._files, rows[whole], (self._tensor.main,))
        if self._scaled:
            scales = _located(
                index,
                rows,
                lambda: _core.read_scales(
                    self._files,
                    self._state_jobs(tensors),
                    plan.layers,
                    layers_stored=index.num_layers,
                    images=self._images,
                ),
            )
            tensors.scales = torch.from_numpy(scales)
        self._read_edges(tensors, pending.memory)
        tensors.fields = _read_fields(plan, self._files, rows)
        return tensors

    def placed(
        self, rows: NDArray[np.int64], edge_counts: NDArray[np.int64] | None, memory: BatchMemory
    ) -> BatchTensors:
        """Return the tensors that another process has filled in the same memory."""
        tensors = self._place(rows, memory)
        if edge_counts is not None:
            _place_edges(tensors, edge_counts, memory)
        return tensors

    def assemble(self, tensors: BatchTensors) -> Batch:
        """Return the batch: tensors that were read, and values of the index."""
        rows, columns = tensors.rows, self._index.columns
        batch = Batch(
            label=torch.from_numpy(columns["label"][rows]),
            score=torch.from_numpy(columns["score"][rows]),
            token_count=torch.from_numpy(columns["tokens"][rows].astype(np.int64)),
            prompt_length=torch.from_numpy(columns["prompt_length"][rows].astype(np.int64)),
            question_ids=self._index.question_ids(rows),
            keys=self._index.keys(rows),
        )
        self._layout.assemble(tensors, batch)
        for name, values in tensors.fields.items():
            if name not in ("logprobs", "meta"):
                values = [torch.from_numpy(array) for array in values]
            if name in _ATTRIBUTES:
                setattr(batch, name, values)
            else:
                batch.extra[name] = values
        return batch

    def _place(self, rows: NDArray[np.int64], memory: BatchMemory) -> BatchTensors:
        tensors = BatchTensors(rows, self._layout.shape(rows))
        if self._layout.has_tensor:
            tensors.values = memory.tensor(tensors.placement.shape, self._dtype)
        return tensors

    def _state_jobs(self, tensors: BatchTensors) -> NDArray[np.int64]:
        rows, placement = tensors.rows, tensors.placement
        return self._plan.job_table(
            _core.ROWS_COLUMNS,
            rows,
            {"tensor": self._tensor.main, "scale": self._scale},
            tokens_stored=self._index.columns["state_tokens"][rows],
            token_first=self._plan.ranges.first[rows],
            token_count=placement.lengths,
            target=placement.targets,
            layer_stride=placement.strides,
        )

    def _read_edges(self, tensors: BatchTensors, memory: BatchMemory) -> None:
        index, files, rows = self._index, self._files, tensors.rows
        jobs = self._layout.jobs(rows, tensors.placement)
        if jobs is None:
            return
        if self._plan.verify_hash:
            _verify_members(index, files, rows, jobs.members)
        counts = _located(index, rows, lambda: jobs.count(files))
        edge_index, edge_attr = _place_edges(tensors, counts, memory)
        _located(index, rows, lambda: jobs.collate(files, edge_index.numpy(), edge_attr.numpy()))


def _numbers(out: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's memory as the decoder takes it: float16 as its bits."""
    array: NDArray[Any] = (out.view(torch.uint16) if out.dtype == torch.float16 else out).numpy()
    return array


def _place_edges(
    tensors: BatchTensors, counts: NDArray[np.int64], memory: BatchMemory
) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate (edge_index, edge_attr), in the same order in both processes of a slab."""
    edges = int(counts.sum())
    edge_index = memory.tensor((2, edges), torch.int64)
    edge_attr = memory.tensor((edges, tensors.placement.edge_channels))
    tensors.edge_index, tensors.edge_attr, tensors.edge_counts = edge_index, edge_attr, counts
    return edge_index, edge_attr


def _located(index: DatasetIndex, rows: NDArray[np.int64], work: Callable[[], T]) -> T:
    """Return ``work()``, which reads the samples ``rows``; its errors name shard, member and byte:
    ShardError if a shard cannot be read, DecodeError if a member is damaged.
    """
    try:
        return work()
    except _core.FormatError as error:
        row = int(rows[error.sample or 0])
        kind = ShardError if error.kind in ("truncated", "io") else DecodeError
        raise kind(
            error.detail,
            shard=str(index.shard_path(int(index.columns["shard"][row]))),
            member=index.member_name(row, f"{error.member}.npy") if error.member else None,
            offset_bytes=error.offset_bytes,
        ) from error


def _verify_members(
    index: DatasetIndex,
    files: _core.ShardFiles,
    rows: NDArray[np.int64],
    members: tuple[str, ...],
) -> None:
    """Raise DecodeError if the XXH3 of a member differs from the index."""
    for member in members:
        for row in rows.tolist():
            StoredSample(index, row, files, check_hash=True).read(member)


def _read_fields(
    plan: DecodePlan, files: _core.ShardFiles, rows: NDArray[np.int64]
) -> dict[str, list[Any]]:
    """Return the values of each requested field that is decoded in Python, one per row."""
    values: dict[str, list[Any]] = {name: [] for name in plan.fields if name not in TENSORS}
    if not values:
        return values
    needs_meta = bool({"meta", "logprobs"} & values.keys())
    for row in rows.tolist():
        sample = StoredSample(plan.index, row, files)
        meta = sample.meta() if needs_meta else {}
        for name, found in values.items():
            if name == "meta":
                found.append(meta)
            elif name == "logprobs":
                found.append(sample.logprobs(meta))
            else:
                found.append(_array(sample, name, plan))
    return values


def _array(sample: StoredSample, kind: str, plan: DecodePlan) -> NDArray[Any]:
    """Return the array of a kind: requested layers only, float16 as float32."""
    array = sample.array(kind)
    if KINDS[kind].main_spec.axes[:1] == ("L",):
        array = array[plan.layers]
    return array.astype(np.float32 if array.dtype == np.float16 else array.dtype)
