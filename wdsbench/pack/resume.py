"""Which part of a run an earlier one, that was killed, has done."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import wdsbench
from wdsbench.errors import PackError
from wdsbench.pack.options import PackOptions
from wdsbench.pack.samples import SamplePacker
from wdsbench.pack.tally import Tally
from wdsbench.shards.format.index import INDEX_NAME, LabelsEntry
from wdsbench.shards.format.rows import SampleRow
from wdsbench.shards.write.journal import read_journal
from wdsbench.shards.write.writer import DatasetWriter


def run_of(
    options: PackOptions, files: Sequence[Path] | None, labels: LabelsEntry | None
) -> dict[str, Any]:
    """Return what the bytes of the shards depend on, files' contents apart.

    Args:
        options: How they are packed.
        files: What is packed; None: files as they come.
        labels: Where labels come from; None: of files as they come.
    """
    words = asdict(options)
    del words["threads"]
    return {
        **words,
        "wdsbench": wdsbench.__version__,
        "inputs": "as they come" if files is None else [path.name for path in files],
        "labels": None if labels is None else labels.model_dump(),
    }


@dataclass
class Progressed:
    """What is done of each file.

    Attributes:
        rows: By file and position: row, split and digest of each sample in a finished shard.
        ended: By file that was read to its end: samples and dropped traces.
        dropped_of: By file, its dropped traces by question.
        stats: By file that was begun: size and time of change.
        names: By file that was begun; None: of a journal that does not say.
        removed: Names of the files that may be gone, by number.
        reduction: Name of the file of components, once they are fitted.
    """

    rows: dict[int, dict[int, tuple[SampleRow, str, int | None]]] = field(default_factory=dict)
    ended: dict[int, tuple[int, int]] = field(default_factory=dict)
    dropped_of: dict[int, dict[str, int]] = field(default_factory=dict)
    stats: dict[int, list[int]] = field(default_factory=dict)
    names: dict[int, str | None] = field(default_factory=dict)
    removed: dict[int, str] = field(default_factory=dict)
    reduction: str | None = None

    @classmethod
    def of(cls, writer: DatasetWriter) -> Progressed:
        """Return what the writer took over."""
        done = cls()
        for shard in writer.finished:
            for row, (file, position, digest) in zip(shard.rows, shard.notes, strict=True):
                done.rows.setdefault(file, {})[position] = (row, shard.split, digest)
        for record in writer.records:
            if "begun" in record:
                done.stats[record["begun"]] = record["stat"]
                done.names[record["begun"]] = record.get("name")
            elif "ended" in record:
                done.ended[record["ended"]] = (record["samples"], record["dropped"])
                done.dropped_of[record["ended"]] = record.get("dropped_of", {})
            elif "removed" in record:
                done.removed.update(record["removed"])
            else:
                done.reduction = record.get("reduction", done.reduction)
        return done

    def is_whole(self, number: int) -> bool:
        """Return whether every sample of a file stands in a finished shard."""
        return number in self.ended and self.ended[number][0] == len(self.rows.get(number, ()))

    def check_unchanged(self, number: int, path: Path) -> None:
        """Raise PackError where a file that samples were taken of is another one now."""
        if number not in self.rows and number not in self.ended:
            return
        if self.names.get(number) not in (None, path.name):
            raise PackError(
                f"file {number + 1} of the run that is resumed was {self.names.get(number)}, now it"
                f" is {path}; give the same files in the same order"
            )
        before = self.stats.get(number)
        if before != stat_of(path):
            raise PackError(
                f"{path} was changed since the run that is resumed (size and time {before}, now"
                f" {stat_of(path)}); pack without --resume to begin anew"
            )

    def replay(self, number: int, path: Path, run: SamplePacker) -> None:
        """Let the run know a whole file without reading it."""
        for position, (row, split, digest) in sorted(self.rows.get(number, {}).items()):
            run.count_again(row, split, str(path), position, digest)
        run.dropped += self.ended[number][1]
        run.traces_of.update(self.dropped_of[number])


def count_finished(run: SamplePacker, writer: DatasetWriter) -> None:
    """Give a run the counts over the shards that the writer took over."""
    for shard in writer.finished:
        run.closed.add(Tally.from_json(shard.summary["tally"]))
        layers, features = shard.summary["shape"]
        run.shape = (layers, features)
        numbers = shard.summary.get("layers")
        run.layers = None if numbers is None else tuple(numbers)
        run.heads = run.heads or shard.summary["heads"]


def require_what_is_gone(writer: DatasetWriter, gone: Collection[str] = ()) -> None:
    """Raise PackError where finished shards do not hold all samples of a file that was removed.

    Args:
        writer: What it took over says which were.
        gone: Names of files that are known to be; the journal, too, may be damaged.
    """
    done = Progressed.of(writer)
    whole = {name for number, name in done.names.items() if done.is_whole(number)}
    lost = [name for number, name in done.removed.items() if not done.is_whole(number)]
    lost += sorted({*gone} - whole - {*lost})
    if lost:
        raise PackError(
            f"{writer.folder}: a finished shard, or the journal of them, is damaged or gone, and"
            " the raw files with samples in it were removed once they were packed"
            f" ({lost[0]}; {len(lost)} in all); put it back from a copy, or begin anew in another"
            " folder"
        )


def require_no_only_copy(folder: Path) -> None:
    """Raise PackError where the folder holds an unfinished run with the only copy of raw files."""
    if (folder / INDEX_NAME).exists():
        return  # what lies beside it is no run's
    removed = removed_files(folder)
    if removed:
        raise PackError(
            f"{folder} holds an unfinished run, and the only copy of {len(removed)} raw files that"
            " were removed once they were packed; go on with that run (wdsbench extract --resume),"
            " or choose another folder"
        )


def removed_files(folder: Path) -> list[str]:
    """Return the names of the raw files that the unfinished run in a folder allowed to remove."""
    records, _ = read_journal(folder)
    found = [record["record"].get("removed", []) for record in records if "record" in record]
    return [name for entries in found for _, name in entries]


def stat_of(path: Path) -> list[int]:
    """Return size and time of change of a file."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
