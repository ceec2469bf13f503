"""Joins the tables of a data set and of the shards that are appended to it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench.records import SPLITS
from wdsbench.shards.format.index import ShardEntry
from wdsbench.shards.read.index import DatasetIndex

_QUESTION_COLUMNS = ("question_offset", "question_bytes")


def joined_columns(
    base: DatasetIndex, entries: list[ShardEntry], columns: dict[str, NDArray[Any]]
) -> tuple[list[ShardEntry], dict[str, NDArray[Any]]]:
    """Return all shards and their columns: split after split, the old shards before the new.

    ``entries`` are the new shards in the order of splits, and ``columns`` their columns.
    """
    shards = [*base.file.shardlist, *entries]
    order = sorted(range(len(shards)), key=lambda i: (SPLITS.index(shards[i].split), i))
    firsts = np.concatenate([[0], np.cumsum([shard.nsamples for shard in shards])])
    # Rows of the concatenated tables, in their new order.
    rows = np.concatenate(
        [np.empty(0, np.int64), *(np.arange(firsts[i], firsts[i + 1]) for i in order)]
    )
    joined: dict[str, NDArray[Any]] = {}
    tables = ((base.columns, len(base)), (columns, len(rows) - len(base)))
    for name in dict.fromkeys((*base.columns, *columns)):
        if name in _QUESTION_COLUMNS:
            continue
        dtype = next(table[name].dtype for table, _ in tables if name in table)
        # Size 0: a member that no sample of this table has.
        parts = [table.get(name, np.zeros(count, dtype)) for table, count in tables]
        joined[name] = np.concatenate(parts)[rows]
    counts = [shards[i].nsamples for i in order]
    joined["shard"] = np.repeat(np.arange(len(shards), dtype=np.uint32), counts)
    texts = [*_questions(base.columns), *_questions(columns)]
    ordered = [texts[row] for row in rows.tolist()]
    joined["question_offset"] = np.concatenate(
        [[0], np.cumsum([len(text) for text in ordered])]
    ).astype(np.uint64)
    joined["question_bytes"] = np.frombuffer(b"".join(ordered), np.uint8)
    return [shards[i] for i in order], joined


def _questions(columns: dict[str, NDArray[Any]]) -> list[bytes]:
    offsets = columns["question_offset"].tolist()
    data = columns["question_bytes"].tobytes()
    return [data[first:last] for first, last in pairwise(offsets)]
