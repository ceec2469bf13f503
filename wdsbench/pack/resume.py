"""The finished part of an earlier, killed run, and when a run may continue or replace it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import wdsbench
from wdsbench.errors import PackError
from wdsbench.pack.options import PackOptions
from wdsbench.pack.samples import SampleBuilder
from wdsbench.pack.tally import Tally
from wdsbench.shards.format.index import INDEX_NAME, LabelsEntry
from wdsbench.shards.format.rows import SampleRow
from wdsbench.shards.write.shard import read_journal
from wdsbench.shards.write.writer import DatasetWriter


def settings_of(
    options: PackOptions, files: Sequence[Path] | None, labels: LabelsEntry | None
) -> dict[str, Any]:
    """Return the settings that decide the bytes of the shards, apart from the files' contents.

    ``files`` is None if they are added one by one, ``labels`` if their source is not known yet.
    """
    settings = asdict(options)
    del settings["threads"]
    return {
        **settings,
        "wdsbench": wdsbench.__version__,
        "inputs": "as they come" if files is None else [path.name for path in files],
        "labels": None if labels is None else labels.model_dump(),
    }


@dataclass
class EarlierRun:
    """The finished part of an earlier run, by number of the raw file.

    Attributes:
        rows: By file and position: row, split and digest of each sample in a finished shard.
        begun: Journal records of files that were begun: name, size and modification time.
        ended: Those of files read to the end: counts of samples and dropped traces.
        removed: Names of files that the run allowed to remove.
        reduction: Name of the file of components, once they are fitted.
    """

    rows: dict[int, dict[int, tuple[SampleRow, str, int | None]]] = field(default_factory=dict)
    begun: dict[int, dict[str, Any]] = field(default_factory=dict)
    ended: dict[int, dict[str, Any]] = field(default_factory=dict)
    removed: dict[int, str] = field(default_factory=dict)
    reduction: str | None = None

    @classmethod
    def of(cls, writer: DatasetWriter) -> EarlierRun:
        """Return the part that a writer took over; empty for a new data set."""
        run = cls()
        for shard in writer.finished:
            for (row, _), (file, position, digest) in zip(shard.rows, shard.notes, strict=True):
                run.rows.setdefault(file, {})[position] = (row, shard.entry.split, digest)
        for record in writer.records:
            if "begun" in record:
                run.begun[record["begun"]] = record
            elif "ended" in record:
                run.ended[record["ended"]] = record
            elif "removed" in record:
                run.removed.update(record["removed"])
            else:
                run.reduction = record["reduction"]
        return run

    def is_finished(self, number: int) -> bool:
        """Return True if every sample of a file is in a finished shard."""
        ended = self.ended.get(number)
        return ended is not None and ended["samples"] == len(self.rows.get(number, ()))

    def check_unchanged(self, number: int, path: Path) -> None:
        """Raise PackError if a file that samples were packed from has changed."""
        if number not in self.rows and number not in self.ended:
            return
        name, before = self.begun[number]["name"], self.begun[number]["stat"]
        if name != path.name:
            raise PackError(
                f"file {number + 1} of the run that is resumed was {name}, now it is {path}; pass"
                " the same files in the same order"
            )
        if before != stat_of(path):
            raise PackError(
                f"{path} was changed since the run that is resumed (size and time {before}, now"
                f" {stat_of(path)}); pack without --resume to start again"
            )

    def replay(self, number: int, path: Path, samples: SampleBuilder) -> None:
        """Add a finished file to the counts without reading it."""
        for position, (row, split, digest) in sorted(self.rows.get(number, {}).items()):
            samples.add_finished(row, split, str(path), position, digest)
        samples.dropped += self.ended[number]["dropped"]
        samples.traces_of.update(self.ended[number]["dropped_of"])


def add_finished_counts(samples: SampleBuilder, writer: DatasetWriter) -> None:
    """Add the counts over the finished shards of an earlier run."""
    for shard in writer.finished:
        samples.closed.add(Tally.from_json(shard.summary["tally"]))
        layers, features = shard.summary["shape"]
        samples.shape = (layers, features)
        numbers = shard.summary["layers"]
        samples.layers = None if numbers is None else tuple(numbers)
        samples.heads = samples.heads or shard.summary["heads"]


def check_removed_files(writer: DatasetWriter, removed: Collection[str] = ()) -> None:
    """Raise PackError unless finished shards hold all samples of the files that were removed:
    those in the journal, and ``removed``, since the journal may be damaged, too.
    """
    run = EarlierRun.of(writer)
    finished = {file["name"] for number, file in run.begun.items() if run.is_finished(number)}
    lost = [name for number, name in run.removed.items() if not run.is_finished(number)]
    lost += sorted({*removed} - finished - {*lost})
    if lost:
        raise PackError(
            f"{writer.folder}: a finished shard, or the journal of them, is damaged or missing, and"
            " raw files with samples in it were removed after they were packed"
            f" ({lost[0]}; {len(lost)} in all); restore it from a copy, or start again in another"
            " folder"
        )


def refuse_only_copy(folder: Path) -> None:
    """Raise PackError if the folder holds an unfinished run with the only copy of raw files."""
    if (folder / INDEX_NAME).exists():
        return  # a journal beside it belongs to no run
    removed = removed_files(folder)
    if removed:
        raise PackError(
            f"{folder} holds an unfinished run, and the only copy of {len(removed)} raw files that"
            " were removed after they were packed; continue that run (wdsbench extract --resume),"
            " or choose another folder"
        )


def removed_files(folder: Path) -> list[str]:
    """Return the names of the raw files that the unfinished run in a folder allowed to remove."""
    records, _ = read_journal(folder)
    return [name for record in records for _, name in record.get("record", {}).get("removed", [])]


def stat_of(path: Path) -> list[int]:
    """Return size and modification time of a file."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
