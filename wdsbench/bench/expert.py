"""The expert baseline: fifteen lines of good torch code, for equal samples and for whole traces.

One raw float16 file, mapped once; batches in preallocated memory; torch's ``copy_`` widens. It has
no ids, no checks, no workers and no resume.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

#: Number of preallocated batches, filled in turn.
BATCHES = 4


class ExpertReader:
    """Batches ``(states float32 [B, ...], labels float32 [B])`` of one epoch in random order."""

    def __init__(self, file: Path, shape: tuple[int, ...], batch_size: int) -> None:
        """Map ``file``: float16 ``[n, *shape]``."""
        flat = np.memmap(file, np.float16, "c")
        self._data = torch.from_numpy(flat).view(-1, *shape)
        self._labels = torch.arange(len(self._data)) % 2
        self._batches = [torch.zeros(batch_size, *shape) for _ in range(BATCHES)]
        self._random = torch.Generator().manual_seed(0)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield batches; each is valid until three more have been requested."""
        order = torch.randperm(len(self._data), generator=self._random)
        for number, rows in enumerate(torch.split(order, len(self._batches[0]))):
            batch = self._batches[number % len(self._batches)][: len(rows)]
            for place, row in enumerate(rows.tolist()):
                batch[place].copy_(self._data[row])
            yield batch, self._labels[rows].float()


class ExpertTraces:
    """Batches ``(states float32 [B, L, Tmax, D], lengths int64 [B])``, padded with zeros."""

    def __init__(
        self, file: Path, tokens: Sequence[int], layers: int, features: int, batch_size: int
    ) -> None:
        """Map ``file``: concatenated float16 traces ``[L, T, D]``, T from ``tokens``."""
        flat = torch.from_numpy(np.memmap(file, np.float16, "c"))
        sizes = [layers * count * features for count in tokens]
        self._traces = [part.view(layers, -1, features) for part in torch.split(flat, sizes)]
        self._lengths = torch.tensor(tokens)
        self._shape = (layers, features)
        self._batch_size = batch_size
        most = batch_size * layers * max(tokens) * features
        self._batches = [torch.zeros(most) for _ in range(BATCHES)]
        self._next = 0
        self._random = torch.Generator().manual_seed(0)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield batches; each is valid until three more have been requested."""
        order = torch.randperm(len(self._traces), generator=self._random)
        for rows in torch.split(order, self._batch_size):
            yield self.padded(rows.tolist()), self._lengths[rows]

    def padded(self, rows: Sequence[int]) -> torch.Tensor:
        """Return ``[len(rows), L, Tmax, D]``, valid until four more have been requested."""
        traces = [self._traces[row] for row in rows]
        longest = max(trace.shape[1] for trace in traces)
        batch = self._batch((len(rows), self._shape[0], longest, self._shape[1]))
        for place, trace in enumerate(traces):
            batch[place, :, : trace.shape[1]].copy_(trace)
            batch[place, :, trace.shape[1] :].zero_()
        return batch

    def last_tokens(self) -> Iterator[torch.Tensor]:
        """Yield ``[B, L, D]``, the last token of every layer, of one epoch in random order."""
        order = torch.randperm(len(self._traces), generator=self._random)
        for rows in torch.split(order, self._batch_size):
            batch = self._batch((len(rows), *self._shape))
            for place, row in enumerate(rows.tolist()):
                batch[place].copy_(self._traces[row][:, -1])
            yield batch

    def _batch(self, shape: tuple[int, ...]) -> torch.Tensor:
        self._next = (self._next + 1) % BATCHES
        return self._batches[self._next][: torch.Size(shape).numel()].view(shape)
