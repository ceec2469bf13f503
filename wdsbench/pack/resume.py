"""Which part of a run an earlier one, that was killed, has done."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import wdsbench
from wdsbench.errors import PackError
from wdsbench.pack.options import PackOptions
from wdsbench.pack.samples import SamplePacker
from wdsbench.pack.tally import Tally
from wdsbench.shards.index import LabelsEntry
from wdsbench.shards.rows import SampleRow
from wdsbench.shards.writer import DatasetWriter


def run_of(options: PackOptions, files: list[Path], labels: LabelsEntry) -> dict[str, Any]:
    """Return what the bytes of the shards depend on, files' contents apart."""
    words = asdict(options)
    del words["threads"]
    return {
        **words,
        "wdsbench": wdsbench.__version__,
        "inputs": [path.name for path in files],
        "labels": labels.model_dump(),
    }


@dataclass
class Progressed:
    """What is done of each file.

    Attributes:
        rows: By file and position: row, split and digest of each sample in a finished shard.
        ended: By file that was read to its end: samples and dropped traces.
        stats: By file that was begun: size and time of change.
        reduction: Name of the file of components, once they are fitted.
    """

    rows: dict[int, dict[int, tuple[SampleRow, str, int | None]]] = field(default_factory=dict)
    ended: dict[int, tuple[int, int]] = field(default_factory=dict)
    stats: dict[int, list[int]] = field(default_factory=dict)
    reduction: str | None = None

    @classmethod
    def of(cls, run: SamplePacker, writer: DatasetWriter) -> Progressed:
        """Return what the writer took over, and give the run its counts."""
        done = cls()
        for shard in writer.finished:
            run.closed.add(Tally.from_json(shard.summary["tally"]))
            layers, features = shard.summary["shape"]
            run.shape = (layers, features)
            run.heads = run.heads or shard.summary["heads"]
            for row, (file, position, digest) in zip(shard.rows, shard.notes, strict=True):
                done.rows.setdefault(file, {})[position] = (row, shard.split, digest)
        for record in writer.records:
            if "begun" in record:
                done.stats[record["begun"]] = record["stat"]
            elif "ended" in record:
                done.ended[record["ended"]] = (record["samples"], record["dropped"])
            else:
                done.reduction = record.get("reduction", done.reduction)
        return done

    def is_whole(self, number: int) -> bool:
        """Return whether every sample of a file stands in a finished shard."""
        return number in self.ended and self.ended[number][0] == len(self.rows.get(number, ()))

    def check_unchanged(self, number: int, path: Path) -> None:
        """Raise PackError where a file that samples were taken of is another one now."""
        before = self.stats.get(number)
        if (number in self.rows or number in self.ended) and before != stat_of(path):
            raise PackError(
                f"{path} was changed since the run that is resumed (size and time {before}, now"
                f" {stat_of(path)}); pack without --resume to begin anew"
            )

    def replay(self, number: int, path: Path, run: SamplePacker) -> None:
        """Let the run know a whole file without reading it."""
        for position, (row, split, digest) in sorted(self.rows.get(number, {}).items()):
            run.count_again(row, split, str(path), position, digest)
        run.dropped += self.ended[number][1]


def stat_of(path: Path) -> list[int]:
    """Return size and time of change of a file."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
