"""``TraceDataset``: single samples as a ``torch.utils.data.IterableDataset``, for a ``DataLoader``
with a ``collate_fn`` of the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from wdsbench import _core
from wdsbench.loader.arguments import SampleOptions, at_least, open_split
from wdsbench.loader.decode import BatchDecoder, PendingBatch
from wdsbench.loader.layouts.image import ImageLayout
from wdsbench.loader.layouts.layout import BatchTensors, Layout, Placement, starts_of
from wdsbench.records import Batch
from wdsbench.slabs import OrdinaryMemory

#: Samples decoded at once, into one block of memory.
SAMPLES_AT_ONCE = 16


class SeparateLayout(Layout):
    """Each sample a block ``[L, T, D]`` of its own, one after the other in memory."""

    name = "separate"

    def shape(self, rows: NDArray[np.int64]) -> Placement:
        """Return the number of elements."""
        lengths, features = self.plan.ranges.count[rows], self.plan.index.num_features
        starts = starts_of(lengths * (self.plan.layers.size * features))
        return Placement((int(starts[-1]),), starts[:-1], lengths * features, lengths)

    def assemble(self, tensors: BatchTensors, batch: Batch) -> None:
        """Set nothing; see :meth:`samples`."""

    def samples(self, tensors: BatchTensors) -> list[torch.Tensor]:
        """Return the states of every sample, ``[L, T, D]`` or, of one token, ``[L, D]``."""
        if tensors.values is None:
            return []
        placement, layers = tensors.placement, self.plan.layers.size
        sizes = (placement.strides * layers).tolist()
        blocks = [
            block.view(layers, length, self.plan.index.num_features)
            for block, length in zip(
                torch.split(tensors.values, sizes), placement.lengths.tolist(), strict=True
            )
        ]
        return [block[:, 0] for block in blocks] if self.plan.single else blocks


class TraceDataset(IterableDataset[dict[str, Any]]):
    """Iterates over the samples of one split.

    Each is a dict: ``hidden`` float32 ``[L, D]`` (one token) or ``[L, T, D]``, or ``image`` float32
    ``[C, P, P]`` with ``fields=("image",)``; ``label`` and ``score`` float32, ``token_count`` and
    ``prompt_length`` int64, ``question_id`` and ``key``, and the other requested fields. In the
    workers of a ``DataLoader`` every sample comes from exactly one of them.

    ``hidden`` and ``image`` are views into a block of a few samples, in ordinary memory:
    ``clone()`` samples that are kept for long. For batches, :class:`wdsbench.TraceLoader` is
    faster.
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        split: str | None = "train",
        **options: Unpack[SampleOptions],
    ) -> None:
        """Open a data set.

        The arguments are those of :class:`wdsbench.TraceLoader`: ``fields``, ``layers``,
        ``tokens``, ``shuffle``, ``seed``, ``verify`` and ``threads`` (1 by default).
        """
        options.setdefault("threads", 1)
        kind = ImageLayout if ImageLayout.tensor in options.get("fields", ()) else SeparateLayout
        self._split = open_split(path, split, kind, SAMPLES_AT_ONCE, **options)
        self.index = self._split.order.index
        self._epoch = 0
        self._files: _core.ShardFiles | None = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; call it before each epoch if a ``DataLoader``
        restarts its workers, which do not count earlier epochs.
        """
        self._epoch = at_least(epoch, 0, "epoch")

    def __len__(self) -> int:
        """Return the exact number of samples of an epoch on this rank."""
        return self._split.order.share()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the samples of one epoch.

        Raises:
            ShardError: A shard cannot be read. DecodeError: a member is damaged.
        """
        epoch, self._epoch = self._epoch, self._epoch + 1
        split = self._split
        if self._files is None:
            self._files = split.open_files()
        decoder = BatchDecoder(split.layout, self._files)
        ahead = split.read_ahead(self._files)
        pending: PendingBatch | None = None
        order = split.order.samples(epoch, ahead)
        while rows := list(islice(order, SAMPLES_AT_ONCE)):
            started = decoder.start(rows, OrdinaryMemory())
            if pending is not None:
                yield from self._samples(decoder, pending)
            pending = started
        if pending is not None:
            yield from self._samples(decoder, pending)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without open shards."""
        return {**self.__dict__, "_files": None}

    def _samples(self, decoder: BatchDecoder, pending: PendingBatch) -> Iterator[dict[str, Any]]:
        tensors = decoder.tensors(pending)
        batch = decoder.assemble(tensors)
        layout = self._split.layout
        blocks: Sequence[torch.Tensor] | torch.Tensor | None = batch.image
        if isinstance(layout, SeparateLayout):
            blocks = layout.samples(tensors)
        for i in range(len(batch)):
            sample = _one(batch, i)
            if layout.has_tensor and blocks is not None:
                sample[layout.tensor] = blocks[i]
            yield sample


def _one(batch: Batch, i: int) -> dict[str, Any]:
    """Return sample ``i`` of a batch without its states or image."""
    sample: dict[str, Any] = {
        "key": batch.keys[i],
        "question_id": batch.question_ids[i],
        "label": batch.label[i],
        "score": batch.score[i],
        "token_count": batch.token_count[i],
        "prompt_length": batch.prompt_length[i],
    }
    if batch.logprobs is not None:
        values = batch.logprobs[i]
        sample["logprobs"] = None if values is None else torch.from_numpy(values)
    lists = {"meta": batch.meta, "sketch": batch.sketch, **batch.extra}
    return sample | {name: values[i] for name, values in lists.items() if values is not None}
