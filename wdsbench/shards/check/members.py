"""The members of a shard: their places in the table and in the tar file, and their bytes."""

from __future__ import annotations

import tarfile
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.shards.format.kinds import member_names
from wdsbench.shards.format.tar import BLOCK_BYTES
from wdsbench.shards.read.index import DatasetIndex

#: Read of every member if only headers are checked; NumPy's headers of four axes have 128 bytes.
FAST_BYTES: Final = 4096


@dataclass(frozen=True)
class MemberPlace:
    """Place of a member's data; ``member`` is its name without the key, ``name`` with it."""

    row: int
    member: str
    name: str
    offset_bytes: int
    size_bytes: int
    xxh3: int | None

    @property
    def first_bytes(self) -> int:
        return self.offset_bytes - BLOCK_BYTES

    @property
    def end_bytes(self) -> int:
        """End, padding included."""
        return self.offset_bytes + self.size_bytes + -self.size_bytes % BLOCK_BYTES


def table_places(index: DatasetIndex, rows: range) -> tuple[list[MemberPlace], list[MemberPlace]]:
    """Return the places of some rows' members in the table, in the order of the shard, and those at
    an offset where no member can be.
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

    ``expected`` are the places in the table; the others describe the members in the tar file.
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
            misplaced.append(("missing from the shard", place.name, place.offset_bytes))
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


@dataclass
class MemberBytes:
    """Problems of a member's bytes as (kind, byte of the shard, detail); False for ``whole`` if the
    data is not as it was written; True for ``other_metadata`` if owner, time or mode differ.
    """

    problems: list[tuple[str, int, str]] = field(default_factory=list)
    whole: bool = True
    other_metadata: bool = False

    def lost(self, kind: str, offset_bytes: int, detail: str) -> MemberBytes:
        """Add a problem of data that is not as it was written."""
        self.problems.append((kind, offset_bytes, detail))
        self.whole = False
        return self


def _header_problem(data: NDArray[np.uint8], size: int) -> tuple[int, str] | None:
    """Return byte and detail of the problem in the npy header of a member of ``size`` bytes."""
    try:
        _core.parse_npy_header(data.data, size)
    except _core.FormatError as error:
        return error.offset_bytes, error.detail
    return None


def check_bytes(
    place: MemberPlace,
    region: NDArray[np.uint8],
    file_bytes: int,
    *,
    fast: bool,
    ours: bool,
    walked: bool,
) -> MemberBytes:
    """Check header, hash and padding of a member; with ``fast`` the headers only.

    ``region`` holds header, data and padding, as far as the file has them. ``ours`` is True if our
    writer wrote the shard, so that every byte of header and padding is known; ``walked`` if a walk
    over the tar headers found no damage.
    """
    found = MemberBytes()
    data = region[BLOCK_BYTES : BLOCK_BYTES + place.size_bytes]
    available = min(max(file_bytes - place.offset_bytes, 0), place.size_bytes)
    wanted = min(place.size_bytes, FAST_BYTES) if fast else place.size_bytes
    if available < place.size_bytes:
        return found.lost(
            "cut",
            place.offset_bytes + min(available, data.size if data.size < wanted else available),
            f"{place.size_bytes - available} of {place.size_bytes} bytes are missing: the shard"
            " ends before them",
        )
    if data.size < wanted:
        return found.lost("cut", place.offset_bytes + data.size, "bytes cannot be read")
    if ours:
        _check_header(found, place, region, walked=walked)
    npy = place.member.endswith(".npy")
    if fast:
        header = _header_problem(data, place.size_bytes) if npy else None
        if header is not None:
            found.lost("npy", place.offset_bytes + header[0], header[1])
        return found
    digest = None if place.xxh3 is None else xxhash.xxh3_64_intdigest(data.data)
    if digest != place.xxh3:
        header = _header_problem(data, place.size_bytes) if npy else None
        byte, reason = header or (0, "its content was changed")
        return found.lost(
            "hash",
            place.offset_bytes + byte,
            f"XXH3 of the data is {digest:016x}, the table says {place.xxh3:016x}; {reason}",
        )
    padding = region[BLOCK_BYTES + place.size_bytes :]
    if ours and padding.any():
        byte = int((padding != 0).argmax())
        detail = f"the padding behind the data holds {int(padding[byte])}, expected zeros"
        end = place.offset_bytes + place.size_bytes
        found.problems.append(("padding", end + byte, detail))
    return found


def _check_header(
    found: MemberBytes, place: MemberPlace, region: NDArray[np.uint8], *, walked: bool
) -> None:
    """Compare the tar header with the one that our writer makes of name and size."""
    header = tarfile.TarInfo(place.name)
    header.size = place.size_bytes
    differs = region[:BLOCK_BYTES] != np.frombuffer(header.tobuf(tarfile.USTAR_FORMAT), np.uint8)
    if not differs.any():
        return
    if walked:  # the walk has proved checksum, name and size
        found.other_metadata = True
        return
    byte = int(differs.argmax())
    name = bytes(region[:100]).split(b"\0")[0].decode("ascii", "replace")
    detail = (
        f"{int(differs.sum())} bytes of its tar header are not as they were written"
        f" (the name there is {name!r})"
    )
    found.problems.append(("header", place.first_bytes + byte, detail))
