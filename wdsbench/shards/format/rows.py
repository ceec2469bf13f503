"""Rows of the table, and the columns made of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench.records import SPLITS
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

#: Columns of numbers and their dtypes.
_NUMBERS: Final = {
    "trace": np.uint32,
    "tokens": np.uint32,
    "state_tokens": np.uint32,
    "prompt_length": np.int32,
    "label": np.float32,
    "score": np.float32,
}


def columns_of(
    shards: Sequence[tuple[str, Sequence[PlacedRow]]], *, hashes: bool = True
) -> dict[str, NDArray[Any]]:
    """Return the table's columns, given (split, rows) of each shard in the index's order.

    ``hashes`` is False if the members' XXH3 are not known; then there are no columns of them.
    """
    rows = [row for _, placed in shards for row, _ in placed]
    placements = [places for _, placed in shards for _, places in placed]
    counts = [len(placed) for _, placed in shards]
    splits = np.array([SPLITS.index(split) for split, _ in shards], np.uint8)
    keys = [os.fsencode(row.key) for row in rows]
    width = max(KEY_CHARACTERS, *map(len, keys), 0)  # other writers' keys can be longer
    questions = [question_bytes(row.question_id) for row in rows]
    columns: dict[str, NDArray[Any]] = {
        "key": np.array(keys, f"S{width}"),
        "shard": np.repeat(np.arange(len(shards), dtype=np.uint32), counts),
        "split": np.repeat(splits, counts),
        **{
            name: np.array([getattr(row, name) for row in rows], dtype)
            for name, dtype in _NUMBERS.items()
        },
        "question_offset": np.cumsum([0, *map(len, questions)]).astype(np.uint64),
        "question_bytes": np.frombuffer(b"".join(questions), np.uint8),
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
