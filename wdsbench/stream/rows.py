"""Pieces to rows of samples; nothing is read, but the disk can be asked to read ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from wdsbench import _core
from wdsbench.shards.format.kinds import HIDDEN
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.stream.pieces import Piece

#: Bytes of a shard requested at a time: enough for the full rate of any disk.
AHEAD_STEP_BYTES = 4 << 20

#: Bytes requested ahead of the current sample.
AHEAD_BYTES = 16 << 20


class SampleRows:
    """Stage of a pipeline: pieces to the index rows of their samples."""

    def __init__(self, index: DatasetIndex, ahead: _core.ReadAhead | None = None) -> None:
        """Create a stage; ``ahead`` reads the shards into the page cache in the order of the rows,
        while a shuffle buffer after this stage holds them.
        """
        self._index = index
        self._ahead = ahead

    def __call__(self, pieces: Iterable[Piece]) -> Iterator[int]:
        """Yield rows in the order of the shard."""
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
        offsets = self._index.member(HIDDEN, "offset")[start:stop].astype(np.int64)
        ends = offsets + self._index.member(HIDDEN, "size")[start:stop].astype(np.int64)
        asked = int(offsets[0])
        row = start
        while row < stop:
            here = int(offsets[row - start])
            wanted = min(here + AHEAD_STEP_BYTES + AHEAD_BYTES, int(ends[-1]))
            if wanted > asked:
                ahead.request(shard, asked, wanted - asked)
                asked = wanted
            after = int(np.searchsorted(offsets, here + AHEAD_STEP_BYTES))
            next_row = start + max(after, row - start + 1)
            yield row, min(next_row, stop)
            row = next_row
