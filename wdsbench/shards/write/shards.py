"""The shards of a data set while they are written: one open for each split, full ones flushed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from wdsbench.jsonlines import JsonLinesWriter
from wdsbench.records import SPLITS
from wdsbench.shards.format.rows import SampleRow
from wdsbench.shards.format.tar import Pieces
from wdsbench.shards.write.flush import Flusher
from wdsbench.shards.write.shard import ClosedShard, OpenShard, shard_name


class ShardWriter:
    """Appends samples to the open shard of their split and closes shards that are full."""

    def __init__(
        self,
        new_file: Callable[[str], Path],
        shard_bytes: int,
        *,
        closed: Mapping[str, list[ClosedShard]],
        first_numbers: Mapping[str, int],
        journal: JsonLinesWriter | None,
        summary: Callable[[str], Any],
    ) -> None:
        """Create a writer; it creates files when samples are added.

        Args:
            new_file: Returns the path of a shard that is about to be created.
            shard_bytes: Size at which a shard is closed.
            closed: Shards of each split that an earlier run closed.
            first_numbers: Number of the first shard of each split.
            journal: Receives a record of each shard once it is on the disk.
            summary: Returns JSON for that record, given the split of a shard that is being closed.
        """
        self._new_file, self._shard_bytes = new_file, shard_bytes
        self._closed = {split: list(closed.get(split, ())) for split in SPLITS}
        self._first_numbers = first_numbers
        self._journal, self._summary = journal, summary
        self._open: dict[str, OpenShard] = {}
        self._pending: dict[str, OpenShard] = {}  # by name: open, or being flushed
        self._flusher = Flusher()

    def add(self, split: str, row: SampleRow, members: Mapping[str, Pieces], note: Any) -> None:
        """Append a sample; ``note`` is JSON that the journal keeps with the row."""
        shard = self._open.get(split) or self.start(split)
        shard.add(row, members, note)
        if shard.size_bytes >= self._shard_bytes:
            self._close_shard(split)
        else:
            self._flusher.flush_part(shard.file, shard.size_bytes)

    def start(self, split: str) -> OpenShard:
        """Create the next shard of a split and return it."""
        number = self._first_numbers.get(split, 0) + len(self._closed[split])
        path = self._new_file(shard_name(split, number))
        self._open[split] = self._pending[path.name] = OpenShard(path, split)
        return self._open[split]

    def pending_notes(self) -> Iterator[Any]:
        """Yield the notes of all samples whose shard is not yet on the disk and in the journal."""
        for shard in list(self._pending.values()):
            yield from shard.notes

    def wait(self) -> None:
        """Wait until all closed shards are on the disk."""
        self._flusher.wait()

    def finish(self) -> list[ClosedShard]:
        """Close the open shards and return all, split after split, once they are on the disk."""
        for split in list(self._open):
            self._close_shard(split)
        self.wait()
        return [shard for split in SPLITS for shard in self._closed[split]]

    def close(self) -> None:
        """Close all files after waiting for those that are being flushed."""
        self._flusher.close()  # first: its thread may be using one of the files
        for shard in self._open.values():
            shard.file.close()
        self._open.clear()
        self._pending.clear()

    def _close_shard(self, split: str) -> None:
        shard = self._open[split]
        closed = shard.close()
        del self._open[split]
        self._closed[split].append(closed)
        journal = self._journal
        record = None if journal is None else shard.record(closed.entry, self._summary(split))

        def on_disk() -> None:
            if journal is not None and record is not None:
                journal.append(record)
            del self._pending[shard.path.name]

        self._flusher.flush_whole(shard.file, shard.path, on_disk)
