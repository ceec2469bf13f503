"""``TraceLoader``: an iterator of batches over one split of a data set.

With ``num_workers=0`` everything happens in the training process, the decode on C++ threads. With
``num_workers=N`` torch's ``DataLoader`` runs the same pipeline in N processes, which are dealt
disjoint pieces by WebDataset's splitters. Both give the same samples; the order is a function of
(seed, epoch, rank, ranks, worker, workers).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from torch.utils.data import DataLoader

from wdsbench.errors import ShardError, WdsbenchError
from wdsbench.loader.decode import BatchDecoder, BatchSlabs, DecodePlan
from wdsbench.loader.select import (
    Tokens,
    as_integer,
    check_layout,
    is_single,
    select_layers,
    select_tokens,
)
from wdsbench.records import Batch, FieldSpec
from wdsbench.shards.open import open_index
from wdsbench.stream import EpochShuffle, PieceList, SampleRows, this_consumer
from wdsbench.stream.pieces import share_of

FIELDS = ("hidden", "logprobs", "meta")
FIELDS_PLANNED = ("sketch",)
VERIFY = ("header", "hash")
MAX_DEFAULT_THREADS = 8


@dataclass
class LoaderStats:
    """What the last (or current) epoch did.

    Attributes:
        epoch: Which one.
        samples: Samples handed out.
        batches: Batches handed out.
        bytes_read: Payload bytes of hidden states that this process read (worker processes count
            none here).
        loader_seconds: Time spent making batches, or waiting for workers to.
        trainer_seconds: Time between handing a batch out and being asked for the next.
    """

    epoch: int = 0
    samples: int = 0
    batches: int = 0
    bytes_read: int = 0
    loader_seconds: float = 0.0
    trainer_seconds: float = 0.0


@dataclass(frozen=True)
class _Failure:
    """What a worker process sends instead of a batch."""

    error: WdsbenchError


class _DecodeStage:
    """Last stage of the pipeline: lists of rows to batches."""

    def __init__(self, decoder: BatchDecoder) -> None:
        self.decoder = decoder

    def __call__(self, lists: Iterable[list[int]]) -> Iterator[Batch | _Failure]:
        for rows in lists:
            try:
                yield self.decoder(rows)
            except WdsbenchError as error:
                if torch.utils.data.get_worker_info() is None:
                    raise
                # torch would hand the error on as text; as an item it keeps its attributes.
                yield _Failure(error)
                return


class TraceLoader:
    """Iterates over the batches of one split; see :class:`wdsbench.records.Batch` for shapes and
    dtypes.
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        split: str | None = "train",
        *,
        fields: Sequence[str] = ("hidden",),
        layers: Sequence[int] | slice | int | None = None,
        tokens: Tokens = "last_answer",
        layout: str = "stack",
        batch_size: int = 32,
        drop_last: bool = False,
        shuffle: int = 1000,
        seed: int = 0,
        num_workers: int = 0,
        threads: int | None = None,
        device: str | torch.device | None = None,
        verify: str = "header",
    ) -> None:
        """Open a data set.

        Args:
            path: Folder with an index; or tar files: one, a pattern with braces or stars, a list.
            split: train, val, test; None: all.
            fields: hidden, logprobs, meta; empty: what the index holds alone (labels, lengths,
                ids).
            layers: None: all; indices, or a slice.
            tokens: ``"last"``, ``"last_answer"`` (one token; its axis is left out), ``"answer"``,
                ``"all"``, k (the last k), ``("first", k)``.
            layout: ``"stack"`` (equal lengths), ``"pad"`` (to the batch's longest, zeros behind),
                ``"jagged"``, ``"graph"`` (all tokens; ``batch.graph``).
            batch_size: Samples a batch.
            drop_last: Leave out a last batch that is not full.
            shuffle: Size of the shuffle buffer in samples; 0: the order of the shards.
            seed: Of every order.
            num_workers: Reading processes; 0: this process.
            threads: Decode threads of this process; None: its usable cores, at most 8. Workers
                decode on one each.
            device: Where batches arrive; None: host memory, pinned if CUDA is available.
            verify: ``"header"``: headers, sizes and counts; ``"hash"``: also XXH3 of members that
                are read whole.

        Raises:
            ShardError: No data set, or a damaged one. DecodeError: the split cannot give what is
                asked for.
            ValueError: An argument outside its range.
        """
        self.index = open_index(path)
        self.split = split
        self.batch_size = _at_least(batch_size, 1, "batch_size")
        self.drop_last = drop_last
        self.seed = seed
        self.num_workers = _at_least(num_workers, 0, "num_workers")
        self.device = None if device is None else _device(device)
        self.stats = LoaderStats()
        self._epoch = 0
        _check_words(fields, FIELDS, "fields")
        _check_words([verify], VERIFY, "verify")
        if verify == "hash" and not self.index.has_hashes:
            raise ValueError(
                "verify='hash': tar files without an index have no hashes; use 'header'"
            )
        if layout == "graph":
            tokens = "all"
        rows = self._rows()
        ranges = select_tokens(self.index, rows, tokens)
        check_layout(self.index, rows, layout, ranges, tokens)
        self._plan = DecodePlan(
            fields=tuple(fields),
            layers=select_layers(layers, self.index.num_layers),
            ranges=ranges,
            layout=layout,
            squeeze=is_single(tokens) and layout == "stack",
            threads=_default_threads() if threads is None else _at_least(threads, 1, "threads"),
            verify_hash=verify == "hash",
        )
        shuffle = _at_least(shuffle, 0, "shuffle")
        self._pieces = PieceList(self.index, split, seed=seed, shuffle=shuffle > 0)
        self._shuffle = EpochShuffle(shuffle, seed=seed) if shuffle else None
        self._slabs = BatchSlabs()

    @property
    def fields(self) -> dict[str, FieldSpec]:
        """Stored fields with dtype and shape."""
        return self.index.fields

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration will be."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be epoch ``epoch``; without a call, every iteration is the next
        one.
        """
        self._epoch = _at_least(epoch, 0, "epoch")

    def __len__(self) -> int:
        """Return the exact number of batches of an epoch on this rank."""
        return sum(self._batches_of(share) for share in self._shares())

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of one epoch.

        Raises:
            ShardError: A shard cannot be read, or samples went missing. DecodeError: a member is
                damaged.
        """
        epoch, self._epoch = self._epoch, self._epoch + 1
        stats = self.stats = LoaderStats(epoch=epoch)
        decoder = BatchDecoder(self.index, self._worker_plan(), self._slabs)
        source = self._batches(epoch, decoder)
        try:
            while True:
                start = time.perf_counter()
                batch = next(source, None)
                if batch is None:
                    break
                if isinstance(batch, _Failure):
                    raise batch.error
                if self.device is not None:
                    batch = move_batch(batch, self.device)
                handed = time.perf_counter()
                stats.loader_seconds += handed - start
                stats.samples += len(batch)
                stats.batches += 1
                stats.bytes_read = decoder.bytes_read
                yield batch
                stats.trainer_seconds += time.perf_counter() - handed
        finally:
            _stop_workers(source)
        self._check_count(stats)

    def _batches(self, epoch: int, decoder: BatchDecoder) -> Iterator[Batch | _Failure]:
        self._pieces.epoch = epoch
        if self._shuffle is not None:
            self._shuffle.epoch = epoch
        pipeline = webdataset.DataPipeline(
            self._pieces,
            webdataset.split_by_node,
            webdataset.split_by_worker,
            SampleRows(self.index),
            self._shuffle,
            webdataset.batched(self.batch_size, collation_fn=None, partial=not self.drop_last),
            _DecodeStage(decoder),
        )
        if self.num_workers:
            return iter(DataLoader(pipeline, batch_size=None, num_workers=self.num_workers))
        return iter(pipeline)

    def _worker_plan(self) -> DecodePlan:
        """Return the plan; in worker processes each decodes on its own thread and no more."""
        return replace(self._plan, threads=1) if self.num_workers else self._plan

    def _rows(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        first = self.index.first_rows
        ranges = [
            np.arange(first[shard], first[shard + 1]) for shard in self.index.shards_of(self.split)
        ]
        return np.concatenate([np.empty(0, np.int64), *ranges])

    def _shares(self) -> list[int]:
        """Return the samples of each reader of this rank."""
        here = this_consumer()
        workers = max(self.num_workers, 1)
        shards = self.index.shards_of(self.split)
        total = sum(self.index.file.shardlist[shard].nsamples for shard in shards)
        return [
            len(
                share_of(
                    total,
                    replace(here, worker=worker, workers=workers).number,
                    here.ranks * workers,
                )
            )
            for worker in range(workers)
        ]

    def _batches_of(self, samples: int) -> int:
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def _check_count(self, stats: LoaderStats) -> None:
        """Prove that an epoch that ended has lost nothing."""
        expected = sum(
            self._batches_of(share) * self.batch_size if self.drop_last else share
            for share in self._shares()
        )
        if stats.samples != expected:
            raise ShardError(
                f"epoch {stats.epoch} gave {stats.samples} samples, the index says {expected}",
                shard=str(self.index.folder),
            )


def _stop_workers(source: Iterator[Batch | _Failure]) -> None:
    """End worker processes now, also after an error or an early break.

    torch has no public call for it and waits for the garbage collector, which finds the iterator of
    a failed epoch late (its traceback holds it) and then waits five seconds for each worker.
    """
    stop = getattr(source, "_shutdown_workers", None)
    if stop is not None:
        stop()


def move_batch(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with every tensor (and graph) on ``device``; copies from pinned memory do
    not wait.
    """
    moved: dict[str, Any] = {}
    for item in fields(batch):
        value = getattr(batch, item.name)
        if hasattr(value, "to"):
            moved[item.name] = value.to(device, non_blocking=True)
    return replace(batch, **moved)


def _default_threads() -> int:
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return min(usable, MAX_DEFAULT_THREADS)


def _device(name: str | torch.device) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError:
        raise ValueError(f"device: {name!r} is not one torch knows, as cpu, cuda, cuda:1") from None


def _at_least(value: int, least: int, name: str) -> int:
    number = as_integer(value)
    if number is None or number < least:
        raise ValueError(f"{name}: {value!r} is not an integer of at least {least}")
    return number


def _check_words(words: Sequence[str], allowed: tuple[str, ...], name: str) -> None:
    if isinstance(words, str):
        raise TypeError(f"{name}: pass a tuple of names, ({words!r},)")
    for word in words:
        if word in FIELDS_PLANNED:
            raise ValueError(f"{name}: {word!r} is not stored by this version")
        if word not in allowed:
            raise ValueError(f"{name}: {word!r} is not one of {', '.join(allowed)}")
