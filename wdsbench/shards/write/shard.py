"""The shards of a data set while they are written, and the journal by which a run is resumed.

``.wdsbench-journal`` has one JSON object a line: the settings of the run; each finished shard (its
index entry, rows and places of members) once it is on the disk; and records of the caller.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from wdsbench.errors import PackError
from wdsbench.files import temp_path
from wdsbench.jsonlines import JsonLinesError, JsonLinesWriter, read_json_lines
from wdsbench.records import SPLITS
from wdsbench.shards.format.index import ShardEntry, as_split
from wdsbench.shards.format.kinds import member_names
from wdsbench.shards.format.rows import PlacedRow, SampleRow
from wdsbench.shards.format.tar import Pieces, Placement, TarWriter, hash_file
from wdsbench.shards.write.flush import Flusher

JOURNAL_NAME: Final = ".wdsbench-journal"

#: Of a value in an error; lists of files are long.
_SHOWN_CHARACTERS: Final = 200


@dataclass(frozen=True)
class ClosedShard:
    """A shard with all its samples; each sample's note and the summary are JSON for the journal."""

    entry: ShardEntry
    rows: list[PlacedRow]
    notes: list[Any]
    summary: Any

    def record(self) -> dict[str, Any]:
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
            "shard": self.entry.model_dump(),
            "rows": [
                [*astuple(row), note] for (row, _), note in zip(self.rows, self.notes, strict=True)
            ],
            "members": members,
            "summary": self.summary,
        }


class OpenShard:
    """A shard that samples are appended to, under the temporary name of ``path``."""

    def __init__(self, path: Path, split: str) -> None:
        self.path = path
        self.split = split
        # Closed by the flusher, or when the writer is closed.
        self.file: BinaryIO = temp_path(path).open("wb")
        self.rows: list[PlacedRow] = []
        self.notes: list[Any] = []
        self.tar = TarWriter(self.file)

    def add(self, row: SampleRow, members: Mapping[str, Pieces], note: Any) -> None:
        placements = {
            name: self.tar.add(f"{row.key}.{name}", members[name])
            for name in member_names()
            if name in members
        }
        self.rows.append((row, placements))
        self.notes.append(note)

    def close(self, summary: Any) -> ClosedShard:
        """Write the end of the archive; the file stays open and is flushed later."""
        digest = self.tar.finish()
        self.file.flush()
        entry = ShardEntry(
            url=self.path.name,
            nsamples=len(self.rows),
            filesize=self.tar.size_bytes,
            xxh3=f"{digest:016x}",
            split=as_split(self.split),
        )
        return ClosedShard(entry, self.rows, self.notes, summary)


def from_record(record: dict[str, Any]) -> ClosedShard:
    entry = ShardEntry.model_validate(record["shard"])
    rows = [SampleRow(*values[:-1]) for values in record["rows"]]
    placements: list[dict[str, Placement]] = [{} for _ in rows]
    for member, places in record["members"].items():
        for row, *place in places:
            placements[row][member] = Placement(*place)
    notes = [values[-1] for values in record["rows"]]
    return ClosedShard(entry, list(zip(rows, placements, strict=True)), notes, record["summary"])


def is_whole(path: Path, entry: dict[str, Any]) -> bool:
    """Return True if a file has the size and XXH3 of its index entry."""
    try:
        size = path.stat().st_size
        return size == int(entry["filesize"]) and hash_file(path) == str(entry["xxh3"])
    except OSError:
        return False


def shard_name(split: str, number: int) -> str:
    return f"{split}-{number:06d}.tar"


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
        """Create a writer that continues after the ``closed`` shards of an earlier run.

        ``new_file`` returns the path of a shard to create, ``first_numbers`` are the numbers of the
        splits' first shards, and ``summary`` returns JSON for the journal, given the split.
        """
        self._new_file, self._shard_bytes = new_file, shard_bytes
        self._closed = {split: list(closed.get(split, ())) for split in SPLITS}
        self._first_numbers = first_numbers
        self._journal, self._summary = journal, summary
        self._open: dict[str, OpenShard] = {}
        self._pending: dict[str, OpenShard] = {}  # by name: open, or being flushed
        self._flusher = Flusher()

    def add(self, split: str, row: SampleRow, members: Mapping[str, Pieces], note: Any) -> None:
        shard = self._open.get(split) or self.start(split)
        shard.add(row, members, note)
        if shard.tar.size_bytes >= self._shard_bytes:
            self._close_shard(split)
        else:
            self._flusher.flush_part(shard.file, shard.tar.size_bytes)

    def start(self, split: str) -> OpenShard:
        number = self._first_numbers.get(split, 0) + len(self._closed[split])
        path = self._new_file(shard_name(split, number))
        self._open[split] = self._pending[path.name] = OpenShard(path, split)
        return self._open[split]

    def pending_notes(self) -> Iterator[Any]:
        """Yield the notes of all samples whose shard is not yet on the disk and in the journal."""
        for shard in list(self._pending.values()):
            yield from shard.notes

    def finish(self) -> list[ClosedShard]:
        """Close the open shards and return all, split after split, once they are on the disk."""
        for split in list(self._open):
            self._close_shard(split)
        self._flusher.wait()
        return [shard for split in SPLITS for shard in self._closed[split]]

    def close(self) -> None:
        """Close all files after waiting for those that are being flushed."""
        self._flusher.close()  # first: its thread may be using one of the files
        for shard in self._open.values():
            shard.file.close()
        self._open.clear()
        self._pending.clear()

    def _close_shard(self, split: str) -> None:
        shard, journal = self._open[split], self._journal
        closed = shard.close(None if journal is None else self._summary(split))
        del self._open[split]
        self._closed[split].append(closed)

        def on_disk() -> None:
            if journal is not None:
                journal.append(closed.record())
            del self._pending[shard.path.name]

        self._flusher.flush_whole(shard.file, shard.path, on_disk)


@dataclass
class Recovered:
    """The finished part of an earlier run.

    ``closed`` are the shards of each split up to the first that is damaged or missing, ``records``
    the caller's, ``files`` the finished files, the journal included; the journal ends at
    ``end_bytes`` (None: there is none to continue).
    """

    closed: dict[str, list[ClosedShard]] = field(default_factory=dict)
    records: list[Any] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    end_bytes: int | None = None


def read_journal(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the journal's records and the offset at which the last ends.

    Raises:
        PackError: A line before the last is damaged.
    """
    try:
        return read_json_lines(folder / JOURNAL_NAME)
    except JsonLinesError as error:
        raise PackError(f"{error}; restore it, or remove the folder and start again") from error


def recover(folder: Path, names: Collection[str], run: dict[str, Any]) -> Recovered:
    """Return the finished part of the run with settings ``run``, to which files ``names`` belong.

    Raises:
        PackError: The settings differ, or the journal is damaged.
    """
    records, end_bytes = read_journal(folder)
    if JOURNAL_NAME not in names or not records:
        return Recovered()
    before = records[0].get("run", {})
    for key, value in run.items():
        if before.get(key) != value:
            old, new = (json.dumps(one)[:_SHOWN_CHARACTERS] for one in (before.get(key), value))
            raise PackError(
                f"{folder} holds an unfinished run with {key} {old}, this run has {new}; resume"
                " with the settings of the unfinished run, or pack without --resume to start again"
            )
    found = Recovered(end_bytes=end_bytes)
    found.files = {JOURNAL_NAME, *(record["file"] for record in records if "file" in record)}
    found.records = [record["record"] for record in records if "record" in record]
    shards = {record["shard"]["url"]: record for record in records if "shard" in record}
    for split in SPLITS:
        closed = found.closed[split] = []
        while (name := shard_name(split, len(closed))) in shards:
            if not is_whole(folder / name, shards[name]["shard"]):
                break
            closed.append(from_record(shards[name]))
            found.files.add(name)
    return found
