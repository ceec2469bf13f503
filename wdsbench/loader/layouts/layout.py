"""The interface of a layout, and the records that its methods exchange with the decoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.loader.plan import DecodePlan
from wdsbench.records import Batch


@dataclass(frozen=True)
class Placement:
    """Where the states or images of a batch's samples are written.

    Attributes:
        shape: Shape of the tensor.
        targets: int64 ``[B]``: element at which each sample starts.
        strides: int64 ``[B]``: elements from one layer of the sample to the next.
        lengths: int64 ``[B]``: tokens of each sample.
        offsets: int64 ``[B + 1]``: where each sample starts on the token or node axis, or None.
        padded: Tokens to which every layer is filled up with zeros; 0: no padding.
        edge_channels: Numbers per edge; 0: the layout has no edges.
    """

    shape: tuple[int, ...]
    targets: NDArray[np.int64]
    strides: NDArray[np.int64]
    lengths: NDArray[np.int64]
    offsets: NDArray[np.int64] | None = None
    padded: int = 0
    edge_channels: int = 0


@dataclass
class BatchTensors:
    """The parts of a batch that are read from shards.

    Attributes:
        rows: int64 ``[B]``: rows of the index.
        values: States or images, float32 (or the stored dtype), shaped as in ``placement``; None
            if not requested.
        scales: float32 ``[B, layers]``: factors not yet applied to float16 states; ``[B, C, 2]``:
            ranges of images not yet normalised; or None.
        edge_index: int64 ``[2, E]``, or None.
        edge_attr: float32 ``[E, edge_channels]``, or None.
        edge_counts: int64: edges of each graph, or None.
        fields: B values of each field that is decoded in Python, by name.
    """

    rows: NDArray[np.int64]
    placement: Placement
    values: torch.Tensor | None = None
    scales: torch.Tensor | None = None
    edge_index: torch.Tensor | None = None
    edge_attr: torch.Tensor | None = None
    edge_counts: NDArray[np.int64] | None = None
    fields: dict[str, list[Any]] = field(default_factory=dict)


class EdgeJobs(ABC):
    """Reads the edges of one batch in two steps: their number, then their content.

    ``members`` are the names of the index, pointer and weight members.
    """

    members: ClassVar[tuple[str, ...]]
    columns: ClassVar[tuple[str, ...]]

    def __init__(self, plan: DecodePlan, rows: NDArray[np.int64], placement: Placement) -> None:
        assert placement.offsets is not None
        self.plan = plan
        self.threads = max(plan.threads, 1)
        self.jobs = plan.job_table(
            self.columns,
            rows,
            dict(zip(("index", "pointer", "weight"), self.members, strict=True)),
            tokens=placement.lengths,
            prompt_length=plan.index.columns["prompt_length"][rows],
            node_base=placement.offsets[:-1],
            edge_base=0,
        )

    def count(self, files: _core.ShardFiles) -> NDArray[np.int64]:
        """Return the edges of each graph; called once, before :meth:`collate`."""
        counts = self.counts(files)
        bases = self.jobs[1:, self.columns.index("edge_base")]
        bases[:] = np.cumsum(counts.sum(axis=1))[:-1]
        return counts.reshape(-1)

    @abstractmethod
    def counts(self, files: _core.ShardFiles) -> NDArray[np.int64]:
        """Return the edges of each graph, int64 ``[B, graphs per sample]``."""

    @abstractmethod
    def collate(
        self, files: _core.ShardFiles, index: NDArray[np.int64], attr: NDArray[np.float32]
    ) -> None:
        """Write the edges: indices int64 ``[2, E]``, weights float32 ``[E, edge_channels]``."""


class Layout(ABC):
    """Arranges the samples of a batch.

    Attributes:
        name: The value of the argument ``layout``.
        tokens: Tokens that the layout always reads; None: those of the argument ``tokens``.
        tensor: The kind that the layout arranges, a key of ``TENSORS``.
    """

    name: ClassVar[str]
    tokens: ClassVar[str | None] = None
    tensor: ClassVar[str] = "hidden"

    def __init__(self, plan: DecodePlan) -> None:
        self.plan = plan

    @property
    def has_tensor(self) -> bool:
        """True if batches have hidden states, or images."""
        return self.tokens is not None or self.tensor in self.plan.fields

    def check(self, rows: NDArray[np.int64]) -> None:  # noqa: B027 - optional
        """Raise DecodeError unless all ``rows`` fit the layout."""

    @abstractmethod
    def shape(self, rows: NDArray[np.int64]) -> Placement:
        """Return the placement of the batch of these rows; the same in every process."""

    def bytes(self, rows: NDArray[np.int64], batch_size: int) -> tuple[int, int]:
        """Return the bytes of (states, edges) of the largest possible batch of ``rows``."""
        return sum_of_largest(self.plan.ranges.count[rows], batch_size) * self.plan.token_bytes, 0

    def jobs(self, rows: NDArray[np.int64], placement: Placement) -> EdgeJobs | None:  # noqa: ARG002
        """Return the decode jobs of edges, or None."""
        return None

    @abstractmethod
    def assemble(self, tensors: BatchTensors, batch: Batch) -> None:
        """Set the fields of ``batch`` that come from ``tensors``; ``hidden_scale``, if there are
        scales, must broadcast against the states.
        """


def starts_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64 ``[n + 1]``: the sum of all counts before each, then of all."""
    starts = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def sum_of_largest(values: NDArray[np.int64], count: int) -> int:
    """Return the sum of the ``count`` largest values, or of all if there are fewer."""
    first = max(values.size - count, 0)
    return int(np.partition(values, first)[first:].sum()) if values.size else 0
