"""Copy the undamaged samples of a data set into a new data set.

The damaged folder is only read. A sample is copied byte for byte if every member exists, has its
hash and has valid contents. Tar headers and padding are written again, so damage there loses
nothing. All other samples are listed in ``lost.csv`` with question and reason.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from wdsbench.errors import PackError, ShardError
from wdsbench.progress import Progress, no_progress
from wdsbench.records import SPLITS
from wdsbench.shards.check.arrays import LayerStats
from wdsbench.shards.check.index_check import shape_problems
from wdsbench.shards.check.shard_check import CheckedSample, ShardCheck
from wdsbench.shards.format.index import FieldEntry, IndexFile, LayerEntry, Repaired
from wdsbench.shards.format.kinds import main_member
from wdsbench.shards.format.tar import END_BYTES
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.writer import MEGABYTE, DatasetWriter

LOST_NAME: Final = "lost.csv"
_COLUMNS: Final = ("key", "question_id", "trace", "split", "shard", "label", "score", "reason")


@dataclass(frozen=True)
class RepairReport:
    """The new index, samples copied, (key, question id, reason) of lost samples, and the names of
    the shards that lost some.
    """

    index: IndexFile
    samples: int
    lost: list[tuple[str, str, str]]
    damaged_shards: list[str]


def repair_dataset(
    folder: Path, out: Path, *, shard_mb: float | None = None, progress: Progress = no_progress
) -> RepairReport:
    """Write a new data set of all undamaged samples of ``folder`` to the folder ``out``.

    ``shard_mb`` is the size at which a shard is closed; None: that of ``folder``.

    Raises:
        ShardError: Index or table are damaged too, or every sample is.
        PackError: ``out`` cannot be written, or is ``folder``.
    """
    if out.resolve() == folder.resolve():
        raise PackError(f"{out} is the damaged data set itself; choose another --out")
    index = DatasetIndex.open(folder)
    for problem in shape_problems(index):
        raise ShardError(f"{problem.detail}; pack the raw traces again", shard=str(folder))
    if shard_mb is None:
        shard_mb = _shard_bytes(index) / MEGABYTE
    writer = DatasetWriter(out, shard_mb=shard_mb)
    try:
        run = _Copy(index, writer)
        numbers = range(len(index.file.shardlist))
        for number in progress(numbers, len(numbers), "saving"):
            run.copy_shard(number)
        if not run.kept:
            raise ShardError("no sample is whole; pack the raw traces again", shard=str(folder))
        _copy_reduction(index, writer)
        writer.add_file(LOST_NAME, run.lost_table())
        file = writer.finish(
            fields=run.fields(),
            layers=run.layers(),
            provenance=index.file.provenance.model_copy(update={"repaired": run.repaired()}),
            labels=index.labels,
        )
    except BaseException:
        writer.abort()
        raise
    lost = [(line[0], line[1], line[-1]) for line in run.lost]
    return RepairReport(file, run.kept, lost, sorted(run.damaged))


class _Copy:
    """Copies samples and counts them."""

    def __init__(self, index: DatasetIndex, writer: DatasetWriter) -> None:
        self._index = index
        self._writer = writer
        self._stats = LayerStats.zeros(index.num_layers)
        self._members: Counter[str] = Counter()
        self.kept = 0
        self.lost: list[tuple[Any, ...]] = []
        self.damaged: set[str] = set()

    def copy_shard(self, number: int) -> None:
        check = ShardCheck(self._index, number)
        for sample in check.samples():
            if sample.lost:
                self._lose(sample, number, check.shard)
                continue
            row = self._index.sample_row(sample.row)
            members = {name: [data] for name, data in sample.members.items()}
            split = SPLITS[int(self._index.columns["split"][sample.row])]
            self._writer.add(split, row, members)
            self._members.update(members.keys())
            self.kept += 1
            if sample.stats is not None:
                self._stats.add(sample.stats)

    def _lose(self, sample: CheckedSample, number: int, shard: str) -> None:
        row, split = self._index.sample_row(sample.row), self._index.file.shardlist[number].split
        self.damaged.add(shard)
        line = (row.key, row.question_id, row.trace, split, shard, row.label, row.score)
        self.lost.append((*line, sample.lost))

    def lost_table(self) -> bytes:
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(_COLUMNS)
        lines.writerows(self.lost)
        return text.getvalue().encode("utf-8", "surrogatepass")

    def fields(self) -> dict[str, FieldEntry]:
        """Return the fields with their new counts, without those that no sample has."""
        counted = {
            name: entry.model_copy(update={"samples": self._members[main_member(name)]})
            for name, entry in self._index.file.fields.items()
        }
        return {name: entry for name, entry in counted.items() if entry.samples}

    def layers(self) -> list[LayerEntry]:
        """Return the layers' entries: maxima of packing, counts of the copied samples."""
        counts = zip(self._stats.infinities.tolist(), self._stats.scaled.tolist(), strict=True)
        return [
            entry.model_copy(update={"infinities": infinities, "scaled_samples": scaled})
            for entry, (infinities, scaled) in zip(self._index.file.layers, counts, strict=False)
        ]

    def repaired(self) -> Repaired:
        before = self._index.file.provenance.repaired
        return Repaired(
            samples_before=len(self._index),
            samples=self.kept,
            lost=len(self.lost),
            lost_before=0 if before is None else before.lost + before.lost_before,
            shards=tuple(sorted(self.damaged)),
            list=LOST_NAME,
        )


def _shard_bytes(index: DatasetIndex) -> int:
    """Return the size at which shards were closed: the smallest before the last."""
    entries = index.file.shardlist
    followed = [entry.filesize for entry, after in pairwise(entries) if entry.split == after.split]
    return min(followed) - END_BYTES if followed else max(entry.filesize for entry in entries) + 1


def _copy_reduction(index: DatasetIndex, writer: DatasetWriter) -> None:
    name = index.file.provenance.reduction
    if name and Path(name).name == name and (index.folder / name).is_file():
        writer.add_file(name, (index.folder / name).read_bytes())
