"""Data sets with one thing wrong, for the tests of verify and repair."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from wdsbench.records import SPLITS
from wdsbench.shards.check.problems import KINDS
from wdsbench.shards.check.verify import VerifyReport
from wdsbench.shards.format.index import FieldEntry
from wdsbench.shards.format.kinds import member_names
from wdsbench.shards.format.rows import SampleRow
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.write.writer import DatasetWriter

BLOCK = 512


@dataclass(frozen=True)
class Spot:
    """A member of a packed data set, where the index says it lies."""

    shard: Path
    name: str
    row: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        """Where its padding ends."""
        return self.offset + self.size + -self.size % BLOCK


def spot(source: Path | DatasetIndex, row: int, member: str) -> Spot:
    """Return where a member lies."""
    index = source if isinstance(source, DatasetIndex) else DatasetIndex.open(source)
    shard = int(np.searchsorted(index.first_rows, row, side="right")) - 1
    return Spot(
        index.shard_path(shard),
        index.member_name(row, member),
        row,
        int(index.member(member, "offset")[row]),
        int(index.member(member, "size")[row]),
    )


def flip(path: Path, offset: int, mask: int = 0x40) -> None:
    """Change one byte of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


def places(report: VerifyReport) -> list[tuple[str, str | None, str | None, int | None]]:
    """Return kind, shard, member and byte of every problem."""
    assert {problem.kind for problem in report.problems} <= set(KINDS)
    return [(p.kind, p.shard, p.member, p.offset_bytes) for p in report.problems]


def npy(array: Any) -> bytes:
    """Return an array as an npy member."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def load(data: bytes) -> Any:
    """Return the array of an npy member, its own copy."""
    return np.load(io.BytesIO(data))


@dataclass
class Sample:
    """One sample on its way into another data set."""

    split: str
    row: SampleRow
    members: dict[str, bytes]

    def change(self, **values: Any) -> None:
        """Give the table other values."""
        self.row = replace(self.row, **values)


def rewritten(
    folder: Path,
    out: Path,
    change: Callable[[list[Sample]], None],
    change_fields: Callable[[dict[str, FieldEntry]], None] = lambda _: None,
) -> Path:
    """Write the data set again with something changed and every hash right."""
    index = DatasetIndex.open(folder)
    shards = [index.shard_path(i).read_bytes() for i in range(len(index.file.shardlist))]
    samples = []
    for row, shard in enumerate(index.columns["shard"].tolist()):
        sample = Sample(SPLITS[int(index.columns["split"][row])], index.sample_row(row), {})
        for member in member_names():
            offset, size = (int(index.member(member, part)[row]) for part in ("offset", "size"))
            if size:
                sample.members[member] = shards[shard][offset : offset + size]
        samples.append(sample)
    change(samples)
    fields = dict(index.file.fields)
    change_fields(fields)
    writer = DatasetWriter(out, shard_mb=0.05)
    for sample in samples:
        writer.add(sample.split, sample.row, {k: [v] for k, v in sample.members.items()})
    writer.finish(
        fields=fields,
        layers=index.file.layers,
        provenance=index.file.provenance,
        labels=index.file.labels,
    )
    return out
