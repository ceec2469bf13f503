"""The samples of each batch: a pipeline of WebDataset stages, cut into lists of rows.

All ranks take the same number of steps by construction: worker w of every rank makes as many
batches as worker w of the rank with the largest share needs. Shares differ by at most one sample,
so a shorter share is spread over the same number of smaller batches; no sample is repeated or
dropped (with batches of one sample, a batch can be empty). With ``drop_last`` all batches are full,
as many as in the smallest share.

The workers of a rank take turns; a worker whose share is used up is left out.

A position is small JSON: every value on which the order depends. The batches after it are found by
replaying the order. All ranks are at the same step, so the state of one rank is valid for all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import webdataset
import xxhash
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.stream import (
    Consumer,
    EpochShuffle,
    PieceList,
    SampleRows,
    cut_pieces,
    this_consumer,
)
from wdsbench.stream.pieces import share_of

#: Version of the JSON of a position.
STATE_FORMAT = 1


@dataclass(frozen=True)
class EpochOffset:
    """A place within an epoch: ``batches`` of this rank come before it.

    ``workers`` is the number of readers per rank when the epoch began, on which its order depends.
    """

    batches: int = 0
    workers: int = 1


@dataclass(frozen=True)
class Position:
    """A place between two batches."""

    epoch: int
    start: EpochOffset


@dataclass(frozen=True)
class BatchOrder:
    """The arguments of a loader from which each process derives its share of an epoch."""

    index: DatasetIndex
    split: str | None
    batch_size: int
    drop_last: bool
    shuffle: int
    seed: int

    def row_lists(
        self, epoch: int, ahead: _core.ReadAhead | None, start: EpochOffset
    ) -> Iterator[list[int]]:
        """Yield the rows of every batch that this process reads in an epoch after ``start``.

        The order before it is replayed, which reads no shard.
        """
        here = this_consumer()
        if start == EpochOffset(0, here.workers):
            return self._batches(self.samples(epoch, ahead), here)
        if start.workers == here.workers:
            done, _ = turns_after(self.steps(here.workers), start.batches)
            return islice(self._batches(self.samples(epoch), here), done[here.worker], None)
        return islice(self._rest(epoch, start), here.worker, None, here.workers)

    def samples(self, epoch: int, ahead: _core.ReadAhead | None = None) -> Iterator[int]:
        """Yield the rows that this process reads in an epoch, one by one."""
        pieces = PieceList(self.index, self.split, seed=self.seed, shuffle=self.shuffle > 0)
        pieces.epoch = epoch
        splitters = webdataset.split_by_node, webdataset.split_by_worker
        rows = SampleRows(self.index, ahead)
        return iter(webdataset.DataPipeline(pieces, *splitters, rows, *self._shuffles(epoch)))

    def rows(self) -> NDArray[np.int64]:
        """Return every row of the split."""
        first = self.index.first_rows
        ranges = [
            np.arange(first[shard], first[shard + 1]) for shard in self.index.shards_of(self.split)
        ]
        return np.concatenate([np.empty(0, np.int64), *ranges])

    def share(self, consumer: Consumer | None = None) -> int:
        """Return the number of samples of a reader; by default of this rank as one reader."""
        reader = consumer or replace(this_consumer(), worker=0, workers=1)
        return len(share_of(self._total, reader.number, reader.count))

    def steps(self, workers: int) -> list[int]:
        """Return the number of batches of each of a rank's readers; the same for every rank."""
        return [self._steps(reader) for reader in self._readers(workers)]

    def count_samples(self, start: EpochOffset) -> int:
        """Return the number of samples that this rank yields in an epoch after ``start``."""
        sizes = [self._sizes(reader) for reader in self._readers(start.workers)]
        done, _ = turns_after([len(found) for found in sizes], start.batches)
        return sum(sum(found[skip:]) for found, skip in zip(sizes, done, strict=True))

    @cached_property
    def _total(self) -> int:
        shards = self.index.shards_of(self.split)
        return sum(self.index.file.shardlist[shard].nsamples for shard in shards)

    def _readers(self, workers: int) -> list[Consumer]:
        here = this_consumer()
        return [replace(here, worker=worker, workers=workers) for worker in range(workers)]

    def _steps(self, reader: Consumer) -> int:
        shares = [self.share(replace(reader, rank=rank)) for rank in range(reader.ranks)]
        if self.drop_last:
            return min(shares) // self.batch_size
        return -(-max(shares) // self.batch_size)

    def _sizes(self, reader: Consumer) -> list[int]:
        return batch_sizes(self.share(reader), self.batch_size, self._steps(reader))

    def _batches(self, rows: Iterator[int], reader: Consumer) -> Iterator[list[int]]:
        for size in self._sizes(reader):
            yield list(islice(rows, size))

    def _rest(self, epoch: int, start: EpochOffset) -> Iterator[list[int]]:
        """Yield the rest of an epoch that was dealt among another number of workers."""
        readers = self._readers(start.workers)
        done, order = turns_after(self.steps(start.workers), start.batches)
        parts = [
            islice(self._batches(self._replayed(epoch, reader), reader), skip, None)
            for reader, skip in zip(readers, done, strict=True)
        ]
        return in_turn(parts, order)

    def _replayed(self, epoch: int, reader: Consumer) -> Iterator[int]:
        """Yield the rows that WebDataset's splitters deal to another reader."""
        pieces = cut_pieces(
            self.index,
            self.split,
            readers=reader.count,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle > 0,
        )
        rows = SampleRows(self.index)(islice(pieces, reader.number, None, reader.count))
        for stage in self._shuffles(epoch, reader):
            rows = stage(rows)
        return rows

    def _shuffles(self, epoch: int, reader: Consumer | None = None) -> list[EpochShuffle]:
        """Return the shuffle stage of a reader (None: this process), if there is one."""
        if not self.shuffle:
            return []
        stage = EpochShuffle(self.shuffle, seed=self.seed, consumer=reader)
        stage.epoch = epoch
        return [stage]


def batch_sizes(samples: int, batch_size: int, steps: int) -> list[int]:
    """Return the sizes of ``steps`` batches of a share: full batches and a rest if that makes
    ``steps`` batches, otherwise sizes that differ by at most one. ``steps`` full batches can hold
    less than the share (``drop_last``).
    """
    if steps == -(-samples // batch_size) or samples >= steps * batch_size:
        places = range(0, min(samples, steps * batch_size), batch_size)
        return [min(batch_size, samples - place) for place in places]
    size, larger = divmod(samples, steps)
    return [size + 1] * larger + [size] * (steps - larger)


def turns_after(steps: Sequence[int], batches: int) -> tuple[list[int], list[int]]:
    """Return the turns after ``batches`` of an epoch in which worker w makes ``steps[w]``: the
    batches that each worker has yielded, and the workers in the order of their next turns
    (finished ones last).
    """
    if not 0 <= batches <= sum(steps):
        raise ValueError(f"batches: {batches} of an epoch of {sum(steps)}")
    done = [0] * len(steps)
    waiting = deque(worker for worker, count in enumerate(steps) if count)
    for _ in range(batches):
        worker = waiting.popleft()
        done[worker] += 1
        if done[worker] < steps[worker]:
            waiting.append(worker)
    finished = [worker for worker in range(len(steps)) if worker not in waiting]
    return done, [*waiting, *finished]


def in_turn(parts: Sequence[Iterator[list[int]]], order: Sequence[int]) -> Iterator[list[int]]:
    """Yield batches of each worker's ``parts`` in turn, starting in the given order."""
    waiting = deque(order)
    while waiting:
        worker = waiting.popleft()
        rows = next(parts[worker], None)
        if rows is not None:
            waiting.append(worker)
            yield rows


def as_state(position: Position, order: BatchOrder) -> dict[str, Any]:
    """Return ``position`` and everything on which the order depends."""
    return {
        "format": STATE_FORMAT,
        "epoch": position.epoch,
        "batches": position.start.batches,
        "workers": position.start.workers,
        **_settings(order),
    }


def from_state(state: Mapping[str, Any], order: BatchOrder) -> Position:
    """Return the position in ``state``; ValueError if it is not a position in ``order``."""
    if state.get("format") != STATE_FORMAT:
        raise ValueError(f"loader state of format {state.get('format')!r}, not {STATE_FORMAT}")
    for name, value in _settings(order).items():
        if state.get(name) != value:
            raise ValueError(
                f"loader state: {name} was {state.get(name)!r} and is {value!r} now; an epoch can"
                " be resumed only in the order in which it began"
            )
    numbers = [state.get(name) for name in ("epoch", "batches", "workers")]
    if not all(type(number) is int and number >= 0 for number in numbers) or numbers[2] == 0:
        raise ValueError(f"loader state: epoch, batches, workers are {numbers!r}")
    epoch, batches, workers = (int(number) for number in numbers if number is not None)
    steps = sum(order.steps(workers))
    if batches > steps:
        raise ValueError(f"loader state: batches is {batches} of an epoch of {steps}")
    return Position(epoch, EpochOffset(batches, workers))


def _settings(order: BatchOrder) -> dict[str, Any]:
    shards = [(shard.url, shard.nsamples, shard.xxh3) for shard in order.index.file.shardlist]
    return {
        "seed": order.seed,
        "split": order.split,
        "batch_size": order.batch_size,
        "drop_last": order.drop_last,
        "shuffle": order.shuffle,
        "ranks": this_consumer().ranks,
        "shards": xxhash.xxh3_64_hexdigest(repr(shards).encode()),
    }
