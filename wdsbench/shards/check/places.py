"""Where the members of a shard are: according to the table, and in the tar file itself."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from wdsbench.shards.format.kinds import member_names
from wdsbench.shards.format.tar import BLOCK_BYTES
from wdsbench.shards.read.index import DatasetIndex


@dataclass(frozen=True)
class MemberPlace:
    """Place of a member in its shard.

    Attributes:
        row: Row of the table.
        member: Name without the key.
        name: Name with the key.
        offset_bytes: Offset of the data.
        size_bytes: Size of the data.
        xxh3: XXH3-64 of the data in the table, or None.
    """

    row: int
    member: str
    name: str
    offset_bytes: int
    size_bytes: int
    xxh3: int | None

    @property
    def first_bytes(self) -> int:
        """Offset of its tar header."""
        return self.offset_bytes - BLOCK_BYTES

    @property
    def end_bytes(self) -> int:
        """End of its padding."""
        return self.offset_bytes + self.size_bytes + -self.size_bytes % BLOCK_BYTES


def table_places(index: DatasetIndex, rows: range) -> tuple[list[MemberPlace], list[MemberPlace]]:
    """Return the places of some rows' members in the table: the possible ones in the order of the
    shard, and those at an offset where no member can be.
    """
    span = slice(rows.start, rows.stop)
    keys = index.keys(np.arange(rows.start, rows.stop))
    places: list[MemberPlace] = []
    nowhere: list[MemberPlace] = []
    for member in member_names():
        columns = [index.member(member, part)[span].tolist() for part in ("offset", "size", "xxh3")]
        for row, key, offset, size, digest in zip(rows, keys, *columns, strict=True):
            if size:
                known = digest if index.has_hashes else None
                place = MemberPlace(row, member, f"{key}.{member}", offset, size, known)
                (nowhere if offset < BLOCK_BYTES else places).append(place)
    return sorted(places, key=lambda place: place.offset_bytes), nowhere


def tar_places(
    expected: list[MemberPlace],
    names: list[str],
    offsets: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> tuple[list[MemberPlace], list[tuple[str, str, int]]]:
    """Return the places of members in a sound tar file, and (detail, member, offset) of each member
    that is missing, moved or unknown; a run of members moved by the same distance counts once.

    Args:
        expected: Places in the table.
        names: Names of the tar file's members.
        offsets: Offsets of their data.
        sizes: Sizes of their data.
    """
    there: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for name, offset, size in zip(names, offsets.tolist(), sizes.tolist(), strict=True):
        there[name].append((offset, size))
    places: list[MemberPlace] = []
    moved: list[tuple[MemberPlace, int]] = []
    misplaced: list[tuple[str, str, int]] = []
    for place in expected:
        candidates = there[place.name]
        own = (place.offset_bytes, place.size_bytes)
        if own in candidates:
            candidates.remove(own)
            places.append(place)
        elif candidates:
            offset, size = candidates.pop(0)
            places.append(replace(place, offset_bytes=offset, size_bytes=size))
            moved.append((places[-1], offset - place.offset_bytes))
        else:
            detail = "the member is missing from the shard"
            misplaced.append((detail, place.name, place.offset_bytes))
    for distance, group in groupby(moved, key=lambda pair: pair[1]):
        run = [place for place, _ in group]
        more = f", and so do {len(run) - 1} members up to {run[-1].name}"
        detail = (
            f"lies {abs(distance)} bytes {'later' if distance > 0 else 'earlier'} than the table"
            f" says{more if len(run) > 1 else ''}"
        )
        misplaced.append((detail, run[0].name, run[0].offset_bytes))
    misplaced += [
        ("the table has no such member", name, offset)
        for name, rest in there.items()
        for offset, _ in rest
    ]
    return places, misplaced
