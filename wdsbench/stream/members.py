"""Samples for custom pipelines, with members that are not read yet.

A sample has webdataset's form (``__key__``, ``__url__``, one entry per suffix), but an entry is a
:class:`wdsbench.records.Member` instead of bytes. Label, score, question id and lengths come from
the index. A shuffle buffer of such samples holds places, not payloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from wdsbench.records import Member
from wdsbench.shards.format.kinds import member_names
from wdsbench.shards.read.index import DatasetIndex


class SampleMembers:
    """Stage of a pipeline: index rows to samples whose members are not read yet."""

    def __init__(self, index: DatasetIndex) -> None:
        self._index = index
        self._members = [name for name in member_names() if f"{name}.size" in index.columns]

    def __call__(self, rows: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield one sample per row."""
        return map(self.sample, rows)

    def sample(self, row: int) -> dict[str, Any]:
        """Return one sample."""
        index = self._index
        shard, key = str(index.shard_path(int(index.columns["shard"][row]))), index.key(row)
        sample: dict[str, Any] = {"__key__": key, "__url__": shard}
        for name in self._members:
            size = int(index.member(name, "size")[row])
            if size:
                offset = int(index.member(name, "offset")[row])
                sample[name] = Member(shard, f"{key}.{name}", offset, size)
        sample["question_id"] = index.question_id(row)
        sample["label"] = float(index.columns["label"][row])
        sample["score"] = float(index.columns["score"][row])
        sample["token_count"] = int(index.columns["tokens"][row])
        sample["prompt_length"] = int(index.columns["prompt_length"][row])
        return sample
