"""Rows of the table, and the columns made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


def columns_of(shards: Sequence[tuple[str, Sequence[PlacedRow]]]) -> dict[str, NDArray[Any]]:
    """Return the table's columns.

    Args:
        shards: (split, rows) of each shard, in the index's order.
    """
    rows = [row for _, placed in shards for row, _ in placed]
    placements = [places for _, placed in shards for _, places in placed]
    questions = [question_bytes(row.question_id) for row in rows]
    columns: dict[str, NDArray[Any]] = {
        "key": np.array([row.key.encode("ascii") for row in rows], f"S{KEY_CHARACTERS}"),
        "shard": np.repeat(
            np.arange(len(shards), dtype=np.uint32), [len(placed) for _, placed in shards]
        ),
        "split": np.repeat(
            np.array([SPLITS.index(split) for split, _ in shards], np.uint8),
            [len(placed) for _, placed in shards],
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
    for member in member_names():
        if any(member in places for places in placements):
            found = [places.get(member, nowhere) for places in placements]
            columns[f"{member}.offset"] = np.array(
                [place.offset_bytes for place in found], np.uint64
            )
            columns[f"{member}.size"] = np.array([place.size_bytes for place in found], np.uint64)
            columns[f"{member}.xxh3"] = np.array([place.xxh3 for place in found], np.uint64)
    return columns
