"""Shards cut into pieces so that every reader gets an equal share, their rows and samples.

WebDataset's splitters assign whole list entries: entry i goes to reader ``i % readers``. The
samples of an epoch, shards in shuffled order, are cut into one contiguous share per reader (sizes
differ by at most one sample), and each share into pieces within one shard. The pieces are listed in
the order of assignment, with empty ones for readers that have fewer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from wdsbench import _core
from wdsbench.records import Member
from wdsbench.shards.format.kinds import member_names
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.stream.assign import this_consumer
from wdsbench.stream.order import order_rng

#: Bytes of a shard requested at a time: enough for the full rate of any disk.
AHEAD_STEP_BYTES = 4 << 20

#: Bytes requested ahead of the current sample.
AHEAD_BYTES = 16 << 20


@dataclass(frozen=True)
class Piece:
    """Samples ``[first, first + count)`` of one shard, by its name and number in the index.

    A piece with ``count`` 0 only fills the list.
    """

    url: str
    shard: int
    first: int
    count: int


def share_of(samples: int, reader: int, readers: int) -> range:
    """Return one reader's positions in an epoch of ``samples``."""
    return range(samples * reader // readers, samples * (reader + 1) // readers)


def cut_pieces(
    index: DatasetIndex, split: str | None, *, readers: int, seed: int, epoch: int, shuffle: bool
) -> list[Piece]:
    """Return an epoch's pieces in the order of assignment; each sample is in exactly one."""
    shards = index.shards_of(split)
    if shuffle:
        order_rng("shards", seed, epoch).shuffle(shards)
    sizes = [index.file.shardlist[shard].nsamples for shard in shards]
    starts = [0, *accumulate(sizes)]
    shares = [
        _cut_share(index, shards, starts, share_of(starts[-1], reader, readers))
        for reader in range(readers)
    ]
    longest = max(len(share) for share in shares)
    empty = Piece("", 0, 0, 0)
    return [share[i] if i < len(share) else empty for i in range(longest) for share in shares]


def _cut_share(
    index: DatasetIndex, shards: list[int], starts: list[int], share: range
) -> list[Piece]:
    """Return the pieces of a share; ``starts``: each shard's start in the epoch, then its end.

    Only the share's own shards are visited, since every reader cuts all shares.
    """
    pieces: list[Piece] = []
    place = bisect_right(starts, share.start) - 1
    while place < len(shards) and starts[place] < share.stop:
        shard, start = shards[place], starts[place]
        first, last = max(share.start, start), min(share.stop, starts[place + 1])
        if first < last:
            url = index.file.shardlist[shard].url
            pieces.append(Piece(url, shard, first - start, last - first))
        place += 1
    return pieces


class PieceList:
    """First stage of a pipeline: yields the pieces of the current ``epoch``."""

    def __init__(
        self, index: DatasetIndex, split: str | None, *, seed: int = 0, shuffle: bool = True
    ) -> None:
        self._index = index
        self._split = split
        self._seed = seed
        self._shuffle = shuffle
        self.epoch = 0

    def __call__(self) -> Iterator[Piece]:
        yield from cut_pieces(
            self._index,
            self._split,
            readers=this_consumer().count,
            seed=self._seed,
            epoch=self.epoch,
            shuffle=self._shuffle,
        )


class SampleRows:
    """Stage of a pipeline: pieces to the index rows of their samples."""

    def __init__(self, index: DatasetIndex, ahead: _core.ReadAhead | None = None) -> None:
        """Create a stage; ``ahead`` reads the shards into the page cache in the order of the rows,
        while a shuffle buffer after this stage holds them.
        """
        self._index = index
        self._ahead = ahead

    def __call__(self, pieces: Iterable[Piece]) -> Iterator[int]:
        first_rows = self._index.first_rows
        for piece in pieces:
            start = int(first_rows[piece.shard]) + piece.first
            stop = start + piece.count
            if self._ahead is None or not piece.count:
                yield from range(start, stop)
                continue
            for first, last in self._steps(self._ahead, piece.shard, start, stop):
                yield from range(first, last)

    def __reduce__(self) -> tuple[type[SampleRows], tuple[DatasetIndex]]:
        """Pickle without ``ahead``, which belongs to one process."""
        return SampleRows, (self._index,)

    def _steps(
        self, ahead: _core.ReadAhead, shard: int, start: int, stop: int
    ) -> Iterator[tuple[int, int]]:
        """Yield row ranges; request the bytes of each and AHEAD_BYTES more before it."""
        main = self._index.tensor.main
        offsets = self._index.member(main, "offset")[start:stop].astype(np.int64)
        ends = offsets + self._index.member(main, "size")[start:stop].astype(np.int64)
        requested = int(offsets[0])
        row = start
        while row < stop:
            here = int(offsets[row - start])
            wanted = min(here + AHEAD_STEP_BYTES + AHEAD_BYTES, int(ends[-1]))
            if wanted > requested:
                ahead.request(shard, requested, wanted - requested)
                requested = wanted
            after = int(np.searchsorted(offsets, here + AHEAD_STEP_BYTES))
            next_row = start + max(after, row - start + 1)
            yield row, min(next_row, stop)
            row = next_row


class SampleMembers:
    """Stage of a pipeline: index rows to samples whose members are not read yet.

    A sample has webdataset's form (``__key__``, ``__url__``, one entry per suffix), but an entry is
    a :class:`wdsbench.records.Member` instead of bytes. Label, score, question id and lengths come
    from the index.
    """

    def __init__(self, index: DatasetIndex) -> None:
        self._index = index
        self._members = [name for name in member_names() if f"{name}.size" in index.columns]

    def __call__(self, rows: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield one sample per row."""
        return map(self.sample, rows)

    def sample(self, row: int) -> dict[str, Any]:
        index = self._index
        shard, key = str(index.shard_path(int(index.columns["shard"][row]))), index.key(row)
        sample: dict[str, Any] = {"__key__": key, "__url__": shard}
        for name in self._members:
            size = int(index.member(name, "size")[row])
            if size:
                offset = int(index.member(name, "offset")[row])
                sample[name] = Member(shard, f"{key}.{name}", offset, size)
        table = index.sample_row(row)
        return {
            **sample,
            "question_id": table.question_id,
            "label": table.label,
            "score": table.score,
            "token_count": table.tokens,
            "prompt_length": table.prompt_length,
        }
