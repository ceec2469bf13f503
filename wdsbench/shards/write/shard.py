"""One shard: while it is written, once it is closed, and as a record of the journal."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from wdsbench.files import temp_path
from wdsbench.shards.format.index import ShardEntry, as_split
from wdsbench.shards.format.kinds import member_names
from wdsbench.shards.format.rows import PlacedRow, SampleRow
from wdsbench.shards.format.tar import Pieces, Placement, TarWriter

#: Bytes hashed, written and hashed again at a time: they stay in a core's L2 cache.
_CHUNK_BYTES: Final = 256 * 1024


@dataclass(frozen=True)
class ClosedShard:
    """A shard with all its samples."""

    entry: ShardEntry
    rows: list[PlacedRow]


@dataclass(frozen=True)
class FinishedShard:
    """A shard that an earlier, killed run finished.

    Attributes:
        split: Its split.
        rows: Rows of its samples, in order.
        notes: The note passed to ``add`` with each sample.
        summary: The summary recorded when it was closed.
    """

    split: str
    rows: list[SampleRow]
    notes: list[Any]
    summary: Any


class OpenShard:
    """A shard that samples are appended to, under a temporary name.

    Attributes:
        path: Its final name.
        file: The open file.
        tar: Writes members to the file.
        rows: Rows of its samples.
        notes: Note of each sample, for the journal.
    """

    def __init__(self, path: Path, split: str) -> None:
        self.path = path
        self.split = split
        # Closed by the flusher, or when the writer is closed.
        self.file: BinaryIO = temp_path(path).open("wb")
        self.rows: list[PlacedRow] = []
        self.notes: list[Any] = []
        self.tar = TarWriter(self.file)

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self.tar.size_bytes

    def add(self, row: SampleRow, members: Mapping[str, Pieces], note: Any) -> None:
        """Append a sample; ``note`` is JSON for the journal."""
        placements = {
            name: self.tar.add(f"{row.key}.{name}", _chunks(members[name]))
            for name in member_names()
            if name in members
        }
        self.rows.append((row, placements))
        self.notes.append(note)

    def close(self) -> ClosedShard:
        """Write the end of the archive; the file stays open and is flushed later."""
        digest = self.tar.finish()
        self.file.flush()
        entry = ShardEntry(
            url=self.path.name,
            nsamples=len(self.rows),
            filesize=self.size_bytes,
            xxh3=f"{digest:016x}",
            split=as_split(self.split),
        )
        return ClosedShard(entry, self.rows)

    def record(self, entry: ShardEntry, summary: Any) -> dict[str, Any]:
        """Return the journal's record of the closed shard."""
        members = {}
        for member in member_names():
            places = [
                [row, place.offset_bytes, place.size_bytes, place.xxh3]
                for row, (_, placements) in enumerate(self.rows)
                if (place := placements.get(member)) is not None
            ]
            if places:
                members[member] = places
        return {
            "shard": entry.model_dump(),
            "rows": [
                [*astuple(row), note] for (row, _), note in zip(self.rows, self.notes, strict=True)
            ],
            "members": members,
            "summary": summary,
        }


def from_record(record: dict[str, Any]) -> tuple[ClosedShard, FinishedShard]:
    """Return the shard that a record of the journal describes."""
    entry = ShardEntry.model_validate(record["shard"])
    rows = [SampleRow(*values[:-1]) for values in record["rows"]]
    placements: list[dict[str, Placement]] = [{} for _ in rows]
    for member, places in record["members"].items():
        for row, *place in places:
            placements[row][member] = Placement(*place)
    notes = [values[-1] for values in record["rows"]]
    shard = ClosedShard(entry, list(zip(rows, placements, strict=True)))
    return shard, FinishedShard(entry.split, rows, notes, record["summary"])


def is_whole(path: Path, entry: dict[str, Any]) -> bool:
    """Return True if a file has the size and XXH3 of its index entry."""
    digest = xxhash.xxh3_64()
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != entry["filesize"]:
                return False
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError:
        return False
    return bool(digest.hexdigest() == entry["xxh3"])


def shard_name(split: str, number: int) -> str:
    """Return the file name of a shard."""
    return f"{split}-{number:06d}.tar"


def _chunks(pieces: Pieces) -> Pieces:
    """Return pieces of at most _CHUNK_BYTES."""
    chunks: list[bytes | NDArray[np.uint8]] = []
    for piece in pieces:
        if len(piece) <= _CHUNK_BYTES:
            chunks.append(piece)
        else:
            view = np.frombuffer(piece, np.uint8)
            chunks += [
                view[first : first + _CHUNK_BYTES] for first in range(0, view.size, _CHUNK_BYTES)
            ]
    return chunks
