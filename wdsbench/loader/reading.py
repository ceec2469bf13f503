"""Which samples make a batch: an epoch's pipeline of WebDataset stages, ending in lists of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import webdataset
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.shards.index import DatasetIndex
from wdsbench.stream import EpochShuffle, PieceList, SampleRows, this_consumer
from wdsbench.stream.pieces import share_of


@dataclass(frozen=True)
class Reading:
    """What every process of a loader must know to produce its share of an epoch.

    Attributes:
        index: Of the data set.
        split: Which split; None: all.
        batch_size: Samples a batch.
        drop_last: Leave out a last batch that is not full.
        shuffle: Size of the shuffle buffer in samples; 0: the order of the shards.
        seed: Of every order.
    """

    index: DatasetIndex
    split: str | None
    batch_size: int
    drop_last: bool
    shuffle: int
    seed: int

    def row_lists(self, epoch: int, ahead: _core.ReadAhead | None = None) -> Iterator[list[int]]:
        """Yield the rows of every batch that this process reads in an epoch."""
        pieces = PieceList(self.index, self.split, seed=self.seed, shuffle=self.shuffle > 0)
        pieces.epoch = epoch
        stages = [
            webdataset.split_by_node,
            webdataset.split_by_worker,
            SampleRows(self.index, ahead),
        ]
        if self.shuffle:
            buffer = EpochShuffle(self.shuffle, seed=self.seed)
            buffer.epoch = epoch
            stages.append(buffer)
        batched = webdataset.batched(self.batch_size, collation_fn=None, partial=not self.drop_last)
        return iter(webdataset.DataPipeline(pieces, *stages, batched))

    def rows(self) -> NDArray[np.int64]:
        """Return every row of the split."""
        first = self.index.first_rows
        ranges = [
            np.arange(first[shard], first[shard + 1]) for shard in self.index.shards_of(self.split)
        ]
        return np.concatenate([np.empty(0, np.int64), *ranges])

    def shares(self, workers: int) -> list[int]:
        """Return the samples of each of this rank's ``workers`` readers."""
        here = this_consumer()
        shards = self.index.shards_of(self.split)
        total = sum(self.index.file.shardlist[shard].nsamples for shard in shards)
        readers = here.ranks * workers
        numbers = [replace(here, worker=w, workers=workers).number for w in range(workers)]
        return [len(share_of(total, number, readers)) for number in numbers]

    def batches_of(self, samples: int) -> int:
        """Return how many batches a reader makes of its samples."""
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def samples_of(self, share: int) -> int:
        """Return how many samples of its share a reader hands out."""
        return self.batches_of(share) * self.batch_size if self.drop_last else share
