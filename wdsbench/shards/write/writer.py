"""Writes a data set: samples in; shards, table and index out, the index last.

The folder is claimed meanwhile (module ``claim``), and a journal (module ``journal``) lists what is
finished.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

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
    Provenance,
    split_entries,
)
from wdsbench.shards.format.rows import SampleRow, columns_of, joined_columns
from wdsbench.shards.format.table import write_table
from wdsbench.shards.format.tar import Pieces
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.claim import FolderClaim
from wdsbench.shards.write.shard import JOURNAL_NAME, ClosedShard, Recovered, ShardWriter, recover

MEGABYTE: Final = 1_000_000


class DatasetWriter:
    """Writes samples in any order of splits; a context, which closes the writer.

    Attributes:
        base: The data set that is appended to, or None.
        finished: Shards of an earlier, killed run of the same settings.
        records: Records of that run, in order.
        keep: True if `close` before `finish` leaves finished shards for a run that resumes; False
            if it leaves the folder as it was found.
    """

    shard_writer: ClassVar[type[ShardWriter]] = ShardWriter

    def __init__(
        self,
        folder: Path,
        *,
        shard_mb: float = 256.0,
        run: dict[str, Any] | None = None,
        resume: bool = False,
        append: bool = False,
        summary: Callable[[str], Any] = lambda _: None,
        check: Callable[[DatasetWriter], None] = lambda _: None,
    ) -> None:
        """Claim ``folder``, which is created if it does not exist.

        Args:
            folder: The data set's.
            shard_mb: A shard is closed once it holds this many megabytes (1e6 bytes).
            run: Settings that decide the bytes of the shards, as JSON. If given, a journal is
                written, by which a killed run can be resumed.
            resume: Keep the finished part of a killed run of the same settings.
            append: Add shards to the finished data set in ``folder``, which stays as it is until
                `finish` replaces the index.
            summary: Called with the split of each closed shard; returns JSON for the journal.
            check: Called, if a journal is written, when `finished` and `records` are known and
                before other files of the killed run are removed; an exception keeps them all.

        Raises:
            PackError: The folder holds a data set (without ``append``) or foreign tar files;
                another process is writing there; the killed run had other settings.
            ShardError: The data set to append to is damaged.
        """
        if not (math.isfinite(shard_mb) and shard_mb > 0):
            raise ValueError(f"shard_mb is {shard_mb}; must be a positive number")
        if append and not (folder / INDEX_NAME).is_file():
            detail = "holds no data set to append to; pack without --append to create one"
            raise PackError(f"{folder} {detail}")
        self.folder = folder
        self.base: DatasetIndex | None = None
        self.finished: list[ClosedShard] = []
        self.records: list[Any] = []
        self.keep = resume
        self._journal: JsonLinesWriter | None = None
        self._open_files = contextlib.ExitStack()
        self._closed = False
        self._claim = FolderClaim(folder, resume=resume)
        found = bool(self._claim.names)
        recovered, first_numbers = Recovered(), dict.fromkeys(SPLITS, 0)
        try:
            if append:
                self.base = DatasetIndex.open(folder)
                first_numbers = _next_numbers(self.base)
            else:
                self._refuse_foreign_data()
            if run is not None:
                recovered = self._open_journal(json.loads(json.dumps(run)), check)
        except BaseException as error:
            self._open_files.close()
            if found:  # these files may be the only copy of their samples
                self._claim.suspend()
            else:
                self._claim.rollback()
            if isinstance(error, OSError):
                raise self._cannot_write(error) from error
            raise
        self._shards = self.shard_writer(
            self._claim.new_file,
            int(shard_mb * MEGABYTE),
            closed=recovered.closed,
            first_numbers=first_numbers,
            journal=self._journal,
            summary=summary,
        )

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(
        self, split: str, row: SampleRow, members: Mapping[str, Pieces], note: Any = None
    ) -> None:
        """Append one sample; ``note`` is JSON that the journal keeps with the row. Raises PackError
        if a member is too large, or the disk is full.
        """
        with self._os_errors():
            self._shards.add(split, row, members, note)

    def add_record(self, record: Any, *, flush: bool = False) -> None:
        """Append JSON to the journal, for a run that resumes; ``flush`` syncs it at once."""
        if self._journal is not None:
            with self._os_errors():
                self._journal.append({"record": record}, flush=flush)

    def pending_notes(self) -> Iterator[Any]:
        """Yield the notes of all samples whose shard is not yet on the disk and in the journal."""
        return self._shards.pending_notes()

    def add_file(self, name: str, data: bytes) -> None:
        """Write another file of the data set, unless an earlier run has written it."""
        if name in self._claim.names:
            return
        with self._os_errors():
            with atomic_file(self._claim.new_file(name)) as file:
                file.write(data)
            if self._journal is not None:
                self._journal.append({"file": name})

    def finish(
        self,
        *,
        fields: dict[str, FieldEntry],
        layers: list[LayerEntry],
        provenance: Provenance,
        labels: LabelsEntry | None = None,
    ) -> IndexFile:
        """Close the shards, write table and index, and return it; PackError for a full disk."""
        with self._os_errors():
            shards = self._shards.finish()
            columns = columns_of([(shard.entry.split, shard.rows) for shard in shards])
            entries = [shard.entry for shard in shards]
            if self.base is not None:
                old = (self.base.file.shardlist, self.base.columns)
                entries, columns = joined_columns(old, (entries, columns))
                self._claim.list_replaced(self.base.file.table.file)
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
            self._close_files()
            self._claim.commit()
            self._closed = True
            sync_folder(self.folder)
        return index

    def abort(self) -> None:
        """Close the writer and leave the folder as it was found."""
        self.keep = False
        self.close()

    def close(self) -> None:
        """Close all files and end the claim; see `keep`."""
        if not self._closed:
            self._closed = True
            self._close_files()
            if self.keep:
                self._claim.suspend()
            else:
                self._claim.rollback()

    def _close_files(self) -> None:
        self._shards.close()
        self._open_files.close()
        self._journal = None

    @contextlib.contextmanager
    def _os_errors(self) -> Iterator[None]:
        """Raise an OSError of the block as a PackError."""
        try:
            yield
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> PackError:
        kept = "finished shards are kept for --resume" if self.keep else "nothing was kept"
        return PackError(f"cannot write to {self.folder}: {error.strerror}; {kept}")

    def _refuse_foreign_data(self) -> None:
        if (self.folder / INDEX_NAME).exists():
            raise PackError(
                f"{self.folder} already holds a data set; choose another --out, remove it, or add"
                " to it with --append"
            )
        if {path.name for path in self.folder.glob("*.tar")} - set(self._claim.names):
            raise PackError(
                f"{self.folder} holds tar files that belong to no data set of wdsbench; choose"
                " another --out"
            )

    def _open_journal(
        self, run: dict[str, Any], check: Callable[[DatasetWriter], None]
    ) -> Recovered:
        """Open the journal and remove unfinished files of an earlier run."""
        found = recover(self.folder, self._claim.names, run)
        self.finished = [shard for shards in found.closed.values() for shard in shards]
        self.records = found.records
        check(self)
        for name in self._claim.names:
            if name not in found.files or not (self.folder / name).is_file():
                self._claim.remove(name)
        path = self.folder / JOURNAL_NAME
        if found.end_bytes is None:
            self._claim.new_file(JOURNAL_NAME)
        self._journal = self._open_files.enter_context(JsonLinesWriter(path))
        if found.end_bytes is None:
            self._journal.append({"run": run})
        else:
            self._journal.truncate(found.end_bytes)
        return found


def _next_numbers(base: DatasetIndex) -> dict[str, int]:
    numbers = dict.fromkeys(SPLITS, 0)
    for entry in base.file.shardlist:
        number = Path(entry.url).stem.removeprefix(f"{entry.split}-")
        if number.isdecimal():
            numbers[entry.split] = max(numbers[entry.split], int(number) + 1)
    return numbers
