"""Pieces to samples: the member stage, which reads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wdsbench.shards.index import DatasetIndex
from wdsbench.stream.pieces import Piece


class SampleRows:
    """Yields the index row of every sample of the pieces it is given."""

    def __init__(self, index: DatasetIndex) -> None:
        self._index = index

    def __call__(self, pieces: Iterable[Piece]) -> Iterator[int]:
        """Yield rows in the order of the shard."""
        first_rows = self._index.first_rows
        for piece in pieces:
            start = int(first_rows[piece.shard]) + piece.first
            yield from range(start, start + piece.count)
