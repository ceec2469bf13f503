"""Write a data set: samples in, shards, table and index out; the index last.

A shard is written under a temporary name, flushed and renamed when it is full; the folder is
claimed for the time (module ``shards.claim``). Whatever raises, :meth:`DatasetWriter.abort` leaves
the folder as it was found.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from wdsbench.errors import PackError
from wdsbench.files import atomic_file, sync_folder, temp_path
from wdsbench.records import SPLITS
from wdsbench.shards.claim import FolderClaim
from wdsbench.shards.index import (
    INDEX_NAME,
    FieldEntry,
    IndexFile,
    LabelsEntry,
    LayerEntry,
    ShardEntry,
    as_split,
    split_entries,
    superseded_tables,
)
from wdsbench.shards.members import MEMBERS
from wdsbench.shards.names import KEY_CHARACTERS, question_bytes
from wdsbench.shards.table import write_table
from wdsbench.shards.tar import Pieces, Placement, TarWriter

MEGABYTE = 1_000_000


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


@dataclass(frozen=True)
class _ClosedShard:
    entry: ShardEntry
    rows: list[tuple[SampleRow, dict[str, Placement]]]


class DatasetWriter:
    """Takes samples in any order of splits and closes with the index."""

    def __init__(self, folder: Path, *, shard_mb: float = 256.0) -> None:
        """Prepare ``folder``.

        Args:
            folder: Made where it does not exist.
            shard_mb: A shard is closed once it holds this many megabytes (1e6 bytes).

        Raises:
            PackError: The folder holds a data set, or shards that are not ours to remove.
        """
        if not (math.isfinite(shard_mb) and shard_mb > 0):
            raise ValueError(f"shard_mb: {shard_mb} is not a positive number")
        self.folder = folder
        self._shard_bytes = int(shard_mb * MEGABYTE)
        self._open: dict[str, _OpenShard] = {}
        self._closed: dict[str, list[_ClosedShard]] = {split: [] for split in SPLITS}
        self._claim = FolderClaim(folder, last=INDEX_NAME, superseded=superseded_tables)
        try:
            self._refuse_foreign_data()
        except BaseException:
            self._claim.withdraw()
            raise

    def add(self, split: str, row: SampleRow, members: Mapping[str, Pieces]) -> None:
        """Append one sample to its split's open shard.

        Raises:
            PackError: A member is too large, or the disk is full.
        """
        try:
            shard = self._open.get(split) or self._start(split)
            placements = {
                name: shard.tar.add(f"{row.key}.{name}", members[name])
                for name in MEMBERS
                if name in members
            }
            shard.rows.append((row, placements))
            if shard.tar.size_bytes >= self._shard_bytes:
                self._close(split)
        except OSError as error:
            raise PackError(
                f"cannot write to {self.folder}: {error.strerror}; nothing was kept"
            ) from error

    def add_file(self, name: str, data: bytes) -> None:
        """Write a file of its own beside the shards.

        Raises:
            PackError: The disk is full.
        """
        try:
            with atomic_file(self._claim.new_file(name)) as file:
                file.write(data)
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
            shards = [shard for split in SPLITS for shard in self._closed[split]]
            columns = _columns(shards)
            index = IndexFile(
                __kind__="wids-shard-index-v1",
                name="wdsbench traces",
                shardlist=[shard.entry for shard in shards],
                fields=fields,
                splits=split_entries(columns),
                layers=layers,
                provenance=provenance,
                labels=labels,
                table=write_table(columns, self._claim.new_file),
            )
            with atomic_file(self.folder / INDEX_NAME) as file:
                file.write(index.to_bytes())
            self._claim.release()
            sync_folder(self.folder)
        except OSError as error:
            raise PackError(
                f"cannot write to {self.folder}: {error.strerror}; nothing was kept"
            ) from error
        return index

    def abort(self) -> None:
        """Remove everything this writer made."""
        for shard in self._open.values():
            shard.file.close()
        self._open.clear()
        self._claim.withdraw()

    def _refuse_foreign_data(self) -> None:
        if (self.folder / INDEX_NAME).exists():
            raise PackError(
                f"{self.folder} already holds a data set; choose another --out or remove it"
            )
        if any(self.folder.glob("*.tar")):
            raise PackError(
                f"{self.folder} holds tar files that are not a data set of ours; choose another"
                " --out"
            )

    def _start(self, split: str) -> _OpenShard:
        path = self._claim.new_file(f"{split}-{len(self._closed[split]):06d}.tar")
        # Closed, flushed and renamed in _close; abort() closes it too.
        file = temp_path(path).open("wb")
        self._open[split] = _OpenShard(path, file, TarWriter(file))
        return self._open[split]

    def _close(self, split: str) -> None:
        shard = self._open[split]
        digest = shard.tar.finish()
        shard.file.flush()
        os.fsync(shard.file.fileno())
        shard.file.close()
        temp_path(shard.path).replace(shard.path)
        del self._open[split]
        entry = ShardEntry(
            url=shard.path.name,
            nsamples=len(shard.rows),
            filesize=shard.tar.size_bytes,
            xxh3=f"{digest:016x}",
            split=as_split(split),
        )
        self._closed[split].append(_ClosedShard(entry, shard.rows))


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
