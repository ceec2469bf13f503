"""``TraceLoader``: an iterator of batches over one split of a data set.

With ``num_workers=0`` C++ threads of the training process decode batch n + 1 while the trainer
works on batch n, and Python has prepared batch n + 2. With ``num_workers=N`` N processes read
disjoint pieces of the split and decode into shared slabs. Both yield the same samples; the order is
a function of (seed, epoch, rank, ranks, worker, workers).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from wdsbench.errors import ShardError
from wdsbench.loader.arguments import Layers, as_device, at_least, open_split
from wdsbench.loader.batch_order import EpochOffset, Position, as_state, from_state
from wdsbench.loader.layouts import LAYOUTS
from wdsbench.loader.plan import Tokens
from wdsbench.loader.readers import InProcessReader, WorkerReader
from wdsbench.loader.stats import LoaderStats, disk_bytes
from wdsbench.records import Batch, FieldSpec
from wdsbench.slabs.transfer import DeviceCopies, move_batch


class TraceLoader:
    """Iterates over the batches of one split, :class:`wdsbench.records.Batch`."""

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        split: str | None = "train",
        *,
        fields: Sequence[str] = ("hidden",),
        layers: Layers = None,
        tokens: Tokens = "last_answer",
        layout: str = "stack",
        batch_size: int = 32,
        drop_last: bool = False,
        shuffle: int = 1000,
        seed: int = 0,
        num_workers: int = 0,
        threads: int | None = None,
        device: str | torch.device | None = None,
        widen: str = "host",
        verify: str = "header",
    ) -> None:
        """Open a data set.

        Args:
            path: A folder with an index; or tar files: one path, a pattern with braces or stars, or
                a list.
            split: train, val or test; None: all.
            fields: hidden, logprobs, meta, sketch; empty: only values of the index (labels,
                lengths, ids).
            layers: Indices or a slice; None: all layers.
            tokens: ``"last"``, ``"last_answer"`` (one token; its axis is left out), ``"answer"``,
                ``"all"``, k (the last k), ``("first", k)``.
            layout: ``"stack"`` (equal lengths), ``"pad"`` (zeros up to the longest of the batch) or
                ``"jagged"``; or ``batch.graph`` of all tokens: ``"graph"`` (one per sample and
                layer) or ``"union-graph"`` (one per sample, an edge wherever some head attends).
            batch_size: Samples per batch.
            drop_last: True to leave out a last batch that is not full.
            shuffle: Size of the shuffle buffer in samples; 0: the order of the shards.
            seed: Seed of every order.
            num_workers: Reading processes; 0: this process.
            threads: Decode threads of this process; None: its usable cores, at most 8. Workers
                use one each.
            device: Device of the batches; None: host memory, pinned if CUDA is available. Batches
                are copied to a CUDA device on a separate stream, one batch ahead.
            widen: Where float16 becomes float32: ``"host"``, while it is copied out of the shard;
                or ``"device"``, which halves the bytes that are copied there.
            verify: ``"header"``: headers, sizes and counts; ``"hash"``: also XXH3 of members that
                are read whole.

        Raises:
            ShardError: There is no data set, or it is damaged.
            DecodeError: The split does not hold what is requested.
            ValueError: An argument is outside its range.
        """
        self.num_workers = at_least(num_workers, 0, "num_workers")
        self.device = None if device is None else as_device(device)
        if layout not in LAYOUTS:
            raise ValueError(f"layout: {layout!r} is not one of {', '.join(LAYOUTS)}")
        self._split = open_split(
            path,
            split,
            LAYOUTS[layout],
            batch_size,
            drop_last=drop_last,
            widen=widen,
            device=self.device,
            fields=fields,
            layers=layers,
            tokens=tokens,
            shuffle=shuffle,
            seed=seed,
            threads=threads,
            verify=verify,
        )
        self._order = self._split.order
        self.index = self._order.index
        self.split = split
        self.batch_size = self._order.batch_size
        self.drop_last = drop_last
        self.seed = self._order.seed
        self.stats = LoaderStats()
        self._reader = (
            WorkerReader(self._split, self.num_workers)
            if self.num_workers
            else InProcessReader(self._split)
        )
        self._epoch = 0
        # Place in the epoch that is being read or was interrupted; None between epochs.
        self._at: Position | None = None
        self._resumed: Position | None = None  # where the next iteration starts, if set
        self._living = 0  # iterations in progress

    @property
    def fields(self) -> dict[str, FieldSpec]:
        """Stored fields with dtype and shape."""
        return self.index.fields

    @property
    def epoch(self) -> int:
        """Number of the next iteration's epoch."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; by default each iteration is the next epoch."""
        self._epoch = at_least(epoch, 0, "epoch")
        if self._resumed is not None and self._resumed.epoch != epoch:
            self._resumed = None
        if not self._living:
            self._at = None

    def state_dict(self) -> dict[str, Any]:
        """Return the position as small JSON: after the batch yielded last, or before the next
        epoch. It is the same on all ranks.
        """
        next_one = Position(self._epoch, EpochOffset(0, self._readers))
        return as_state(self._at or self._resumed or next_one, self._order)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume in the next iteration where ``state`` was saved, with exactly the same batches.

        The number of workers may differ. The order before the position is replayed, which reads no
        shard; ``len()`` remains that of whole epochs.

        Raises:
            ValueError: The state is of another order: data, split, seed, batch size, ranks, ...
        """
        self._resumed = from_state(state, self._order)
        self._epoch = self._resumed.epoch
        self._at = None

    def close(self) -> None:
        """End the worker processes; the next iteration starts new ones."""
        self._reader.close()

    def __len__(self) -> int:
        """Return the exact number of batches of an epoch on this rank."""
        return sum(self._order.steps(self._readers))

    @property
    def _readers(self) -> int:
        return max(self.num_workers, 1)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of one epoch.

        Raises:
            ShardError: A shard cannot be read, or samples are missing. DecodeError: a member is
                damaged. WdsbenchError: a worker process died, or has no memory.
        """
        epoch, self._epoch = self._epoch, self._epoch + 1
        begun, self._resumed = self._resumed, None
        start = EpochOffset(0, self._readers) if begun is None else begun.start
        workers = self.num_workers
        stats = LoaderStats(epoch=epoch, decoders=workers or self._split.layout.plan.threads)
        self.stats = stats
        batches = self._reader.epoch(stats, start)
        copies = None
        if self.device is not None:
            copies = DeviceCopies(self.device, partial(move_batch, device=self.device))
            batches = copies(batches)
        if not workers:
            disk_before = disk_bytes()
        self._at = Position(epoch, start)
        self._living += 1
        began = requested = time.perf_counter()
        try:
            while (batch := next(batches, None)) is not None:
                received = time.perf_counter()
                stats.trainer_waited_seconds += received - requested
                stats.seconds = received - began
                stats.samples += len(batch)
                stats.batches += 1
                self._at = Position(epoch, replace(start, batches=start.batches + stats.batches))
                if copies is not None:
                    stats.copy_seconds = copies.copy_seconds
                if not workers:
                    stats.disk_bytes = disk_bytes() - disk_before
                yield batch
                del batch
                requested = time.perf_counter()
        finally:
            self._living -= 1
            batches.close()
        self._at = None
        if copies is not None:
            stats.copy_seconds = copies.copy_seconds
        expected = self._order.count_samples(start)
        if stats.samples != expected:
            raise ShardError(
                f"epoch {stats.epoch} yielded {stats.samples} samples, the index has {expected}",
                shard=str(self.index.folder),
            )
