"""Write a data set: samples in, shards, table and index out; the index last.

A shard is written under a temporary name, flushed (by a thread, beside the next shard) and renamed
when it is full; the folder is claimed for the time (module ``shards.claim``), and a journal (module
``shards.journal``) says what is finished. Whatever raises, :meth:`DatasetWriter.abort` leaves the
folder as it was found.
"""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray

from wdsbench.errors import PackError
from wdsbench.files import atomic_file, sync_folder, temp_path
from wdsbench.records import SPLITS
from wdsbench.shards.append import joined_columns
from wdsbench.shards.claim import FolderClaim
from wdsbench.shards.index import (
    INDEX_NAME,
    DatasetIndex,
    FieldEntry,
    IndexFile,
    LabelsEntry,
    LayerEntry,
    ShardEntry,
    as_split,
    split_entries,
    superseded_tables,
)
from wdsbench.shards.journal import JOURNAL_NAME, Journal, read_journal
from wdsbench.shards.members import MEMBERS
from wdsbench.shards.names import KEY_CHARACTERS, question_bytes
from wdsbench.shards.table import write_table
from wdsbench.shards.tar import Pieces, Placement, TarWriter

MEGABYTE = 1_000_000

#: What is hashed, written and hashed again at a time: stays in a core's L2 cache.
_CHUNK_BYTES = 256 * 1024
#: Closed shards whose bytes may not be on the disk yet while the next are made.
_FLUSHING = 3
#: Of a value in an error; lists of files are long.
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class SampleRow:
    """What the table keeps of one sample, members apart."""

    key: str
    question_id: str
    trace: int
    tokens: int
    state_tokens: int
    prompt_length: int
    label: float
    score: float


@dataclass
class _OpenShard:
    path: Path
    file: BinaryIO
    tar: TarWriter
    rows: list[tuple[SampleRow, dict[str, Placement]]] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class _ClosedShard:
    entry: ShardEntry
    rows: list[tuple[SampleRow, dict[str, Placement]]]


@dataclass(frozen=True)
class FinishedShard:
    """A shard that an earlier, killed run finished.

    Attributes:
        split: Its split.
        rows: The samples' rows, in order.
        notes: What ``add`` was given to be remembered of each.
        summary: What ``summary`` said when it was closed.
    """

    split: str
    rows: list[SampleRow]
    notes: list[Any]
    summary: Any


class DatasetWriter:
    """Takes samples in any order of splits and closes with the index.

    Attributes:
        folder: The data set's.
        finished: Shards taken over from a killed run.
        records: What that run gave ``remember``, in its order.
    """

    def __init__(
        self,
        folder: Path,
        *,
        shard_mb: float = 256.0,
        run: dict[str, Any] | None = None,
        resume: bool = False,
        summary: Callable[[str], Any] = lambda _: None,
    ) -> None:
        """Prepare ``folder``.

        Args:
            folder: Made where it does not exist.
            shard_mb: A shard is closed once it holds this many megabytes (1e6 bytes).
            run: What the shards' bytes depend on, as JSON. Where it is given, a journal is kept,
                by which a killed run can go on.
            resume: Take over what a killed run of the same ``run`` has finished.
            summary: Called with the split of each shard that is closed; the journal keeps what it
                returns.

        Raises:
            PackError: The folder holds a data set, or shards that are not ours to remove; or the
                killed run was another one, whose files are left as they are.
        """
        self._prepare(folder, shard_mb, summary)
        self._resume = resume
        self._claim = FolderClaim(
            folder, last=INDEX_NAME, superseded=superseded_tables, keep=resume
        )
        try:
            self._refuse_foreign_data()
            if run is not None:
                self._keep_journal(json.loads(json.dumps(run)))
        except _OtherRunError as error:
            self._claim.suspend()
            raise PackError(str(error)) from None
        except BaseException as error:
            self._let_go()
            self._claim.withdraw()
            if isinstance(error, OSError):
                raise self._cannot_write(error) from error
            raise

    @classmethod
    def appending(cls, folder: Path, *, shard_mb: float = 256.0) -> DatasetWriter:
        """Return a writer whose shards come to those of a finished data set.

        Until `finish` renames the new index into place the data set is the old one, for readers
        and after a kill.

        Raises:
            ShardError: There is no data set, or its index is damaged.
            PackError: Another process is writing there.
        """
        if not (folder / INDEX_NAME).is_file():
            raise PackError(
                f"{folder} holds no data set to append to; pack without --append to make one"
            )
        writer = cls.__new__(cls)
        writer._prepare(folder, shard_mb, lambda _: None)
        writer._claim = FolderClaim(folder, last=INDEX_NAME, superseded=superseded_tables)
        try:
            writer.base = DatasetIndex.open(folder)
        except BaseException:
            writer._claim.settle()
            raise
        for entry in writer.base.file.shardlist:
            number = Path(entry.url).stem.removeprefix(f"{entry.split}-")
            following = int(number) + 1 if number.isdecimal() else 0
            writer._first[entry.split] = max(writer._first[entry.split], following)
        return writer

    def _prepare(self, folder: Path, shard_mb: float, summary: Callable[[str], Any]) -> None:
        if not (math.isfinite(shard_mb) and shard_mb > 0):
            raise ValueError(f"shard_mb: {shard_mb} is not a positive number")
        self.folder = folder
        self.base: DatasetIndex | None = None
        self.finished: list[FinishedShard] = []
        self.records: list[Any] = []
        self._shard_bytes = int(shard_mb * MEGABYTE)
        self._summary = summary
        self._journal: Journal | None = None
        self._resume = False
        self._open: dict[str, _OpenShard] = {}
        self._first = dict.fromkeys(SPLITS, 0)
        self._closed: dict[str, list[_ClosedShard]] = {split: [] for split in SPLITS}
        self._flusher: ThreadPoolExecutor | None = None
        self._flushing: deque[Future[None]] = deque()

    def add(
        self, split: str, row: SampleRow, members: Mapping[str, Pieces], note: Any = None
    ) -> None:
        """Append one sample to its split's open shard.

        Args:
            split: Of the sample.
            row: What the table keeps.
            members: Content by member name.
            note: JSON that the journal keeps with the row.

        Raises:
            PackError: A member is too large, or the disk is full.
        """
        try:
            shard = self._open.get(split) or self._start(split)
            placements = {
                name: shard.tar.add(f"{row.key}.{name}", _chunks(members[name]))
                for name in MEMBERS
                if name in members
            }
            shard.rows.append((row, placements))
            shard.notes.append(note)
            if shard.tar.size_bytes >= self._shard_bytes:
                self._close(split)
        except OSError as error:
            raise self._cannot_write(error) from error

    def remember(self, record: Any) -> None:
        """Keep JSON in the journal, for a run that goes on; it reaches the disk with a shard."""
        if self._journal is not None:
            try:
                self._journal.append({"record": record}, flush=False)
            except OSError as error:
                raise self._cannot_write(error) from error

    def add_file(self, name: str, data: bytes) -> None:
        """Write a file of its own beside the shards; a resumed run's is there already.

        Raises:
            PackError: The disk is full.
        """
        if name in self._claim.names:
            return
        try:
            with atomic_file(self._claim.new_file(name)) as file:
                file.write(data)
            if self._journal is not None:
                self._journal.append({"file": name})
        except OSError as error:
            raise PackError(f"cannot write {name}: {error.strerror}") from error

    def finish(
        self,
        *,
        fields: dict[str, FieldEntry],
        layers: list[LayerEntry],
        provenance: dict[str, Any],
        labels: LabelsEntry | None = None,
    ) -> IndexFile:
        """Close the shards, write table and index, and return what the index says.

        Raises:
            PackError: The disk is full.
        """
        try:
            for split in list(self._open):
                self._close(split)
            self._flushed(0)
            shards = [shard for split in SPLITS for shard in self._closed[split]]
            columns = _columns(shards)
            entries = [shard.entry for shard in shards]
            if self.base is not None:
                entries, columns = joined_columns(self.base, entries, columns)
                self._claim.replaces(self.base.file.table.file)
            index = IndexFile(
                __kind__="wids-shard-index-v1",
                name="wdsbench traces",
                shardlist=entries,
                fields=fields,
                splits=split_entries(columns),
                layers=layers,
                provenance=provenance,
                labels=labels,
                table=write_table(columns, self._claim.new_file),
            )
            with atomic_file(self.folder / INDEX_NAME) as file:
                file.write(index.to_bytes())
            self._let_go()
            if self.base is not None:
                self._claim.settle()
            else:
                if JOURNAL_NAME in self._claim.names:
                    self._claim.remove(JOURNAL_NAME)
                self._claim.release()
            sync_folder(self.folder)
        except OSError as error:
            raise self._cannot_write(error) from error
        return index

    def abort(self) -> None:
        """Remove everything this writer made; a data set that was there is left as it was."""
        self._let_go()
        if self.base is not None:
            self._claim.settle()
        else:
            self._claim.withdraw()

    def suspend(self) -> None:
        """Leave what is finished for a run that goes on."""
        self._let_go()
        self._claim.suspend()

    def _let_go(self) -> None:
        """Close every file; wait for those that are being flushed."""
        for shard in self._open.values():
            shard.file.close()
        self._open.clear()
        if self._flusher is not None:
            self._flusher.shutdown()
            self._flusher = None
        for future in self._flushing:
            future.exception()  # what went wrong was raised before, or does not matter any more
        self._flushing.clear()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _cannot_write(self, error: OSError) -> PackError:
        left = "what is finished stays for --resume" if self._resume else "nothing was kept"
        return PackError(f"cannot write to {self.folder}: {error.strerror}; {left}")

    def _refuse_foreign_data(self) -> None:
        if (self.folder / INDEX_NAME).exists():
            raise PackError(
                f"{self.folder} already holds a data set; choose another --out, remove it, or add"
                " to it with --append"
            )
        if {path.name for path in self.folder.glob("*.tar")} - set(self._claim.names):
            raise PackError(
                f"{self.folder} holds tar files that are not a data set of ours; choose another"
                " --out"
            )

    def _keep_journal(self, run: dict[str, Any]) -> None:
        """Take over what a killed run finished, where there was one, and open the journal."""
        records, end = read_journal(self.folder / JOURNAL_NAME)
        if JOURNAL_NAME not in self._claim.names:
            records, end = [], 0
        if not records:
            for name in self._claim.names:
                self._claim.remove(name)
            self._journal = Journal(self._claim.new_file(JOURNAL_NAME))
            self._journal.append({"run": run})
            return
        before = records[0].get("run")
        for key in run:
            if not isinstance(before, dict) or before.get(key) != run[key]:
                old = before.get(key) if isinstance(before, dict) else None
                raise _OtherRunError(
                    f"{self.folder} holds an unfinished run with {key} {_short(old)}, this one has"
                    f" {_short(run[key])}; resume with what it was begun with, or pack without"
                    " --resume to begin anew"
                )
        kept = {JOURNAL_NAME, *(record["file"] for record in records if "file" in record)}
        self.records = [record["record"] for record in records if "record" in record]
        kept |= self._take_over({r["shard"]["url"]: r for r in records if "shard" in r})
        for name in self._claim.names:
            if name not in kept or not (self.folder / name).is_file():
                self._claim.remove(name)
        self._journal = Journal(self.folder / JOURNAL_NAME, end_bytes=end)

    def _take_over(self, records: dict[str, dict[str, Any]]) -> set[str]:
        """Take over each split's finished shards up to the first that is not whole; return their
        names.
        """
        names = set()
        for split in SPLITS:
            while True:
                name = _shard_name(split, len(self._closed[split]))
                if name not in records or not _is_whole(self.folder / name, records[name]["shard"]):
                    break
                shard, finished = _from_journal(records[name])
                self._closed[split].append(shard)
                self.finished.append(finished)
                names.add(name)
        return names

    def _start(self, split: str) -> _OpenShard:
        number = self._first[split] + len(self._closed[split])
        path = self._claim.new_file(_shard_name(split, number))
        # Closed, flushed and renamed in _close; abort() closes it too.
        file = temp_path(path).open("wb")
        self._open[split] = _OpenShard(path, file, TarWriter(file))
        return self._open[split]

    def _close(self, split: str) -> None:
        shard = self._open[split]
        digest = shard.tar.finish()
        shard.file.flush()
        del self._open[split]
        entry = ShardEntry(
            url=shard.path.name,
            nsamples=len(shard.rows),
            filesize=shard.tar.size_bytes,
            xxh3=f"{digest:016x}",
            split=as_split(split),
        )
        self._closed[split].append(_ClosedShard(entry, shard.rows))
        record = None
        if self._journal is not None:
            record = _to_journal(entry, shard, self._summary(split))
        # The disk is waited for beside the next shard's making.
        self._flusher = self._flusher or ThreadPoolExecutor(1, "wdsbench-flush")
        self._flushing.append(self._flusher.submit(self._flush, shard, record))
        self._flushed(_FLUSHING)

    def _flush(self, shard: _OpenShard, record: dict[str, Any] | None) -> None:
        with shard.file:
            os.fsync(shard.file.fileno())
        temp_path(shard.path).replace(shard.path)
        if record is not None and self._journal is not None:
            self._journal.append(record)

    def _flushed(self, waiting: int) -> None:
        """Wait until at most ``waiting`` shards are not on the disk; raise what went wrong."""
        while self._flushing and (len(self._flushing) > waiting or self._flushing[0].done()):
            self._flushing.popleft().result()


class _OtherRunError(Exception):
    """The folder holds the files of another run."""


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _shard_name(split: str, number: int) -> str:
    return f"{split}-{number:06d}.tar"


def _chunks(pieces: Pieces) -> Pieces:
    """Return pieces small enough that hashing and writing find them in a core's cache."""
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


def _to_journal(entry: ShardEntry, shard: _OpenShard, summary: Any) -> dict[str, Any]:
    members = {}
    for member in MEMBERS:
        places = [
            [row, place.offset_bytes, place.size_bytes, place.xxh3]
            for row, (_, placements) in enumerate(shard.rows)
            if (place := placements.get(member)) is not None
        ]
        if places:
            members[member] = places
    return {
        "shard": entry.model_dump(),
        "rows": [
            [*astuple(row), note] for (row, _), note in zip(shard.rows, shard.notes, strict=True)
        ],
        "members": members,
        "summary": summary,
    }


def _from_journal(record: dict[str, Any]) -> tuple[_ClosedShard, FinishedShard]:
    entry = ShardEntry.model_validate(record["shard"])
    rows = [SampleRow(*values[:-1]) for values in record["rows"]]
    placements: list[dict[str, Placement]] = [{} for _ in rows]
    for member, places in record["members"].items():
        for row, *place in places:
            placements[row][member] = Placement(*place)
    notes = [values[-1] for values in record["rows"]]
    shard = _ClosedShard(entry, list(zip(rows, placements, strict=True)))
    return shard, FinishedShard(entry.split, rows, notes, record["summary"])


def _is_whole(path: Path, entry: dict[str, Any]) -> bool:
    """Return whether a file has the size and XXH3 of its entry."""
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


def _columns(shards: list[_ClosedShard]) -> dict[str, NDArray[Any]]:
    rows = [row for shard in shards for row, _ in shard.rows]
    placements = [places for shard in shards for _, places in shard.rows]
    questions = [question_bytes(row.question_id) for row in rows]
    columns: dict[str, NDArray[Any]] = {
        "key": np.array([row.key.encode("ascii") for row in rows], f"S{KEY_CHARACTERS}"),
        "shard": np.repeat(
            np.arange(len(shards), dtype=np.uint32), [len(shard.rows) for shard in shards]
        ),
        "split": np.repeat(
            np.array([SPLITS.index(shard.entry.split) for shard in shards], np.uint8),
            [len(shard.rows) for shard in shards],
        ),
        "trace": np.array([row.trace for row in rows], np.uint32),
        "tokens": np.array([row.tokens for row in rows], np.uint32),
        "state_tokens": np.array([row.state_tokens for row in rows], np.uint32),
        "prompt_length": np.array([row.prompt_length for row in rows], np.int32),
        "label": np.array([row.label for row in rows], np.float32),
        "score": np.array([row.score for row in rows], np.float32),
        "question_offset": np.concatenate([[0], np.cumsum([len(q) for q in questions])]).astype(
            np.uint64
        ),
        "question_bytes": np.frombuffer(b"".join(questions), np.uint8),
    }
    nowhere = Placement(0, 0, 0)
    for member in MEMBERS:
        if any(member in places for places in placements):
            found = [places.get(member, nowhere) for places in placements]
            columns[f"{member}.offset"] = np.array(
                [place.offset_bytes for place in found], np.uint64
            )
            columns[f"{member}.size"] = np.array([place.size_bytes for place in found], np.uint64)
            columns[f"{member}.xxh3"] = np.array([place.xxh3 for place in found], np.uint64)
    return columns
