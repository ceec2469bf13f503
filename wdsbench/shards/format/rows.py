"""Rows of the table, its columns (``docs/format.md``), and those of two data sets joined."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench.records import SPLITS
from wdsbench.shards.format.index import ShardEntry
from wdsbench.shards.format.kinds import member_names
from wdsbench.shards.format.names import KEY_CHARACTERS, question_bytes
from wdsbench.shards.format.tar import Placement


@dataclass(frozen=True)
class SampleRow:
    """One sample's row of the table, without its members."""

    key: str
    question_id: str
    trace: int
    tokens: int
    state_tokens: int
    prompt_length: int
    label: float
    score: float


#: A sample's row, and the place of each member by name.
PlacedRow = tuple[SampleRow, Mapping[str, Placement]]

_NUMBERS: Final = {
    "trace": np.uint32,
    "tokens": np.uint32,
    "state_tokens": np.uint32,
    "prompt_length": np.int32,
    "label": np.float32,
    "score": np.float32,
}
_QUESTIONS: Final = ("question_offset", "question_bytes")


def columns_of(
    shards: Sequence[tuple[str, Sequence[PlacedRow]]], *, hashes: bool = True
) -> dict[str, NDArray[Any]]:
    """Return the columns of the (split, rows) of each shard, without XXH3 unless ``hashes``."""
    rows = [row for _, placed in shards for row, _ in placed]
    placements = [places for _, placed in shards for _, places in placed]
    counts = [len(placed) for _, placed in shards]
    splits = np.array([SPLITS.index(split) for split, _ in shards], np.uint8)
    keys = [os.fsencode(row.key) for row in rows]
    width = max(KEY_CHARACTERS, *map(len, keys), 0)  # other writers' keys can be longer
    columns: dict[str, NDArray[Any]] = {
        "key": np.array(keys, f"S{width}"),
        "shard": np.repeat(np.arange(len(shards), dtype=np.uint32), counts),
        "split": np.repeat(splits, counts),
        **{
            name: np.array([getattr(row, name) for row in rows], dtype)
            for name, dtype in _NUMBERS.items()
        },
        **_question_columns([question_bytes(row.question_id) for row in rows]),
    }
    parts = {"offset": "offset_bytes", "size": "size_bytes", **({"xxh3": "xxh3"} if hashes else {})}
    nowhere = Placement(0, 0, 0)
    for member in member_names():
        if any(member in places for places in placements):
            found = [places.get(member, nowhere) for places in placements]
            for part, name in parts.items():
                values = [getattr(place, name) for place in found]
                columns[f"{member}.{part}"] = np.array(values, np.uint64)
    return columns


def joined_columns(
    old: tuple[list[ShardEntry], dict[str, NDArray[Any]]],
    new: tuple[list[ShardEntry], dict[str, NDArray[Any]]],
) -> tuple[list[ShardEntry], dict[str, NDArray[Any]]]:
    """Return the shards and columns of two tables as one: split after split, old shards first."""
    shards = old[0] + new[0]
    order = sorted(range(len(shards)), key=lambda i: (SPLITS.index(shards[i].split), i))
    firsts = np.concatenate([[0], np.cumsum([shard.nsamples for shard in shards])])
    # Rows of the concatenated tables, in their new order.
    rows = np.concatenate(
        [np.empty(0, np.int64), *(np.arange(firsts[i], firsts[i + 1]) for i in order)]
    )
    tables = (old[1], new[1])
    joined: dict[str, NDArray[Any]] = {}
    for name in dict.fromkeys(name for table in tables for name in table):
        if name not in _QUESTIONS:
            dtype = next(table[name].dtype for table in tables if name in table)
            # Size 0: a member that no sample of this table has.
            parts = [table.get(name, np.zeros(len(table["key"]), dtype)) for table in tables]
            joined[name] = np.concatenate(parts)[rows]
    counts = [shards[i].nsamples for i in order]
    joined["shard"] = np.repeat(np.arange(len(shards), dtype=np.uint32), counts)
    texts = [text for table in tables for text in _question_texts(table)]
    joined.update(_question_columns([texts[row] for row in rows.tolist()]))
    return [shards[i] for i in order], joined


def _question_columns(texts: Sequence[bytes]) -> dict[str, NDArray[Any]]:
    ends = np.cumsum([0, *map(len, texts)]).astype(np.uint64)
    return dict(zip(_QUESTIONS, (ends, np.frombuffer(b"".join(texts), np.uint8)), strict=True))


def _question_texts(columns: dict[str, NDArray[Any]]) -> list[bytes]:
    ends, text = (columns[name] for name in _QUESTIONS)
    data = text.tobytes()
    return [data[first:last] for first, last in pairwise(ends.tolist())]
