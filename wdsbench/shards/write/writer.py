"""Write a data set: samples in, shards, table and index out; the index last.

A shard is written under a temporary name, flushed (by a thread, beside the next shard) and renamed
when it is full; the folder is claimed for the time (module ``shards.claim``), and a journal (module
``shards.journal``) says what is finished. Whatever raises, :meth:`DatasetWriter.abort` leaves the
folder as it was found.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from wdsbench.errors import PackError
from wdsbench.files import atomic_file, sync_folder
from wdsbench.jsonlines import JsonLinesWriter
from wdsbench.records import SPLITS
from wdsbench.shards.format.index import (
    INDEX_NAME,
    FieldEntry,
    IndexFile,
    LabelsEntry,
    LayerEntry,
    split_entries,
    superseded_tables,
)
from wdsbench.shards.format.provenance import Provenance
from wdsbench.shards.format.rows import SampleRow, columns_of
from wdsbench.shards.format.table import write_table
from wdsbench.shards.format.tar import Pieces
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.append import joined_columns
from wdsbench.shards.write.claim import FolderClaim
from wdsbench.shards.write.flush import Flusher
from wdsbench.shards.write.journal import JOURNAL_NAME, read_journal
from wdsbench.shards.write.shard import (
    ClosedShard,
    FinishedShard,
    OpenShard,
    from_record,
    is_whole,
    shard_name,
)

MEGABYTE = 1_000_000

#: Of a value in an error; lists of files are long.
_SHOWN_CHARACTERS = 200


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
        check: Callable[[DatasetWriter], None] = lambda _: None,
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
            check: Called, where a journal is kept, once it is known what of a killed run is whole
                and before the rest is removed; what it raises leaves all as it is.

        Raises:
            PackError: The folder holds a data set, or shards that are not ours to remove; or the
                killed run was another one, or its journal is damaged.

        Whatever is raised, the files of the killed run that ``resume`` found stay.
        """
        self._prepare(folder, shard_mb, summary)
        self._check = check
        self._resume = resume
        self._claim = FolderClaim(
            folder, last=INDEX_NAME, superseded=superseded_tables, keep=resume
        )
        found = bool(self._claim.names)
        try:
            self._refuse_foreign_data()
            if run is not None:
                self._keep_journal(json.loads(json.dumps(run)))
        except BaseException as error:
            self._let_go()
            if found:  # by a run that resumes: it may be the only copy, whatever went wrong
                self._claim.suspend()
            else:
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
        self._journal: JsonLinesWriter | None = None
        self._resume = False
        self._open: dict[str, OpenShard] = {}
        self._first = dict.fromkeys(SPLITS, 0)
        self._closed: dict[str, list[ClosedShard]] = {split: [] for split in SPLITS}
        self._unfinished: dict[str, OpenShard] = {}  # open, or closed and being flushed; by name
        self._flusher = Flusher()

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
            shard.add(row, members, note)
            if shard.size_bytes >= self._shard_bytes:
                self._close(split)
            else:
                self._flusher.part(shard.file, shard.size_bytes)
        except OSError as error:
            raise self._cannot_write(error) from error

    def remember(self, record: Any, *, flush: bool = False) -> None:
        """Keep JSON in the journal, for a run that goes on; it reaches the disk with a shard, or,
        with ``flush``, at once.
        """
        if self._journal is not None:
            try:
                self._journal.append({"record": record}, flush=flush)
            except OSError as error:
                raise self._cannot_write(error) from error

    def unfinished_notes(self) -> Iterator[Any]:
        """Yield the notes of all samples whose shard is not yet on the disk under its own name, and
        in the journal.
        """
        for shard in list(self._unfinished.values()):
            yield from shard.notes

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
        provenance: Provenance,
        labels: LabelsEntry | None = None,
    ) -> IndexFile:
        """Close the shards, write table and index, and return what the index says.

        Raises:
            PackError: The disk is full.
        """
        try:
            for split in list(self._open):
                self._close(split)
            self._flusher.wait()
            shards = [shard for split in SPLITS for shard in self._closed[split]]
            columns = columns_of([(shard.entry.split, shard.rows) for shard in shards])
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
        self._flusher.close()  # before the files: it may be at one of them
        for shard in self._open.values():
            shard.file.close()
        self._open.clear()
        self._unfinished.clear()
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
        records, end = read_journal(self.folder)
        if JOURNAL_NAME not in self._claim.names:
            records, end = [], 0
        if not records:
            self._check(self)
            for name in self._claim.names:
                self._claim.remove(name)
            self._journal = JsonLinesWriter(self._claim.new_file(JOURNAL_NAME))
            self._journal.append({"run": run})
            return
        before = records[0].get("run")
        for key in run:
            if not isinstance(before, dict) or before.get(key) != run[key]:
                old = before.get(key) if isinstance(before, dict) else None
                raise PackError(
                    f"{self.folder} holds an unfinished run with {key} {_short(old)}, this one has"
                    f" {_short(run[key])}; resume with what it was begun with, or pack without"
                    " --resume to begin anew"
                )
        kept = {JOURNAL_NAME, *(record["file"] for record in records if "file" in record)}
        self.records = [record["record"] for record in records if "record" in record]
        kept |= self._take_over({r["shard"]["url"]: r for r in records if "shard" in r})
        self._check(self)
        for name in self._claim.names:
            if name not in kept or not (self.folder / name).is_file():
                self._claim.remove(name)
        self._journal = JsonLinesWriter(self.folder / JOURNAL_NAME)
        self._journal.truncate(end)

    def _take_over(self, records: dict[str, dict[str, Any]]) -> set[str]:
        """Take over each split's finished shards up to the first that is not whole; return their
        names.
        """
        names = set()
        for split in SPLITS:
            while True:
                name = shard_name(split, len(self._closed[split]))
                if name not in records or not is_whole(self.folder / name, records[name]["shard"]):
                    break
                shard, finished = from_record(records[name])
                self._closed[split].append(shard)
                self.finished.append(finished)
                names.add(name)
        return names

    def _start(self, split: str) -> OpenShard:
        number = self._first[split] + len(self._closed[split])
        path = self._claim.new_file(shard_name(split, number))
        self._open[split] = self._unfinished[path.name] = OpenShard(path, split)
        return self._open[split]

    def _close(self, split: str) -> None:
        shard = self._open[split]
        closed = shard.close()
        del self._open[split]
        self._closed[split].append(closed)
        record = None
        if self._journal is not None:
            record = shard.record(closed.entry, self._summary(split))

        def note() -> None:
            if record is not None and self._journal is not None:
                self._journal.append(record)
            del self._unfinished[shard.path.name]

        self._flusher.whole(shard.file, shard.path, note)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
