"""The bytes of one member in a shard: tar header, data and padding."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from wdsbench.shards.check.arrays import header_problem
from wdsbench.shards.check.places import MemberPlace
from wdsbench.shards.format.tar import BLOCK_BYTES

#: Read of every member if only headers are checked; NumPy's headers of four axes have 128 bytes.
FAST_BYTES: Final = 4096


@dataclass
class MemberBytes:
    """Result of the check of a member's bytes.

    Attributes:
        problems: (kind, byte of the shard, detail) of each problem.
        whole: True if the data is what was written.
        other_metadata: True if owner, time or mode in the tar header differ.
    """

    problems: list[tuple[str, int, str]] = field(default_factory=list)
    whole: bool = True
    other_metadata: bool = False

    def lost(self, kind: str, offset_bytes: int, detail: str) -> MemberBytes:
        """Add a problem after which the data is not what was written."""
        self.problems.append((kind, offset_bytes, detail))
        self.whole = False
        return self


def check_bytes(
    place: MemberPlace,
    region: NDArray[np.uint8],
    file_bytes: int,
    *,
    fast: bool,
    ours: bool,
    walked: bool,
) -> MemberBytes:
    """Check header, hash and padding of a member.

    Args:
        place: Where the member is.
        region: Header, data and padding, as far as the file has them.
        file_bytes: Size of the shard.
        fast: Check headers only.
        ours: True if our writer wrote the shard, so that every byte of header and padding is known.
        walked: True if a walk over the tar headers found no damage.
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
        header = header_problem(place.member, data.data, place.size_bytes) if npy else None
        if header is not None:
            found.lost("npy", place.offset_bytes + (header.offset_bytes or 0), header.detail)
        return found
    digest = None if place.xxh3 is None else xxhash.xxh3_64_intdigest(data.data)
    if digest != place.xxh3:
        header = header_problem(place.member, data.data, place.size_bytes) if npy else None
        return found.lost(
            "hash",
            place.offset_bytes + (0 if header is None else header.offset_bytes or 0),
            f"XXH3 of the data is {digest:016x}, the table says {place.xxh3:016x};"
            f" {'its content was changed' if header is None else header.detail}",
        )
    padding = region[BLOCK_BYTES + place.size_bytes :]
    if ours and padding.any():
        byte = int((padding != 0).argmax())
        found.problems.append(
            (
                "padding",
                place.offset_bytes + place.size_bytes + byte,
                f"the padding behind the data holds {int(padding[byte])}, expected zeros",
            )
        )
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
    found.problems.append(
        (
            "header",
            place.first_bytes + byte,
            f"{int(differs.sum())} bytes of its tar header are not as they were written"
            f" (the name there is {name!r})",
        )
    )
