"""The shard list: shards cut into pieces so that every reader gets an equal share.

WebDataset's splitters assign whole list entries: entry i goes to reader ``i % readers``. The
samples of an epoch, shards in shuffled order, are cut into one contiguous share per reader (sizes
differ by at most one sample), and each share into pieces within one shard. The pieces are listed in
the order of assignment, with empty ones for readers that have fewer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from wdsbench.shards.read.index import DatasetIndex
from wdsbench.stream.assign import this_consumer
from wdsbench.stream.order import order_rng


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
            pieces.append(
                Piece(index.file.shardlist[shard].url, shard, first - start, last - first)
            )
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
        """Yield every piece of the epoch, for WebDataset's splitters."""
        readers = this_consumer().count
        yield from cut_pieces(
            self._index,
            self._split,
            readers=readers,
            seed=self._seed,
            epoch=self.epoch,
            shuffle=self._shuffle,
        )
