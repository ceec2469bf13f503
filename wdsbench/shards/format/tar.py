"""Write one shard: a USTAR file whose bytes depend on its members only.

Layout of a member: 512-byte header (regular file, mode 0644, uid = gid = 0, mtime 0, no names),
the data, zeros up to the next multiple of 512. Two zero blocks end the shard. Array payloads are
64-byte aligned in the file, since npy headers are padded to a multiple of 64.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from wdsbench.errors import PackError

BLOCK_BYTES = 512
END_BYTES = 2 * BLOCK_BYTES

#: Bytes hashed, written and hashed again at a time: they stay in a core's L2 cache.
_CHUNK_BYTES = 256 * 1024

#: A USTAR header has 11 octal digits for the size.
MEMBER_LIMIT_BYTES = 8**11

#: Consecutive pieces of a member's data, so that arrays are not copied to bytes.
Pieces = Sequence["bytes | NDArray[np.uint8]"]


@dataclass(frozen=True)
class Placement:
    """Place and XXH3-64 of a member's data (not of its header) in its shard."""

    offset_bytes: int
    size_bytes: int
    xxh3: int


def hash_file(path: Path) -> str:
    """Return the XXH3-64 of a shard in the form of the index."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_64).hexdigest()


#: The header of a file without name and size; its fields are at 0 (name), 124 (size) and 148
#: (checksum: the sum of all bytes with spaces in its own place).
_EMPTY: Final = tarfile.TarInfo("").tobuf(tarfile.USTAR_FORMAT)
_EMPTY_SUM: Final = sum(_EMPTY[100:124]) + sum(_EMPTY[136:148]) + sum(_EMPTY[156:]) + 8 * ord(" ")


def ustar_header(name: str, size: int) -> bytes:
    """Return the header that `tarfile` makes of a name of up to 100 bytes, ten times as fast."""
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > 100:
        raise ValueError(f"member name {name!r} has {len(encoded)} bytes; must have at most 100")
    octal = b"%011o\0" % size
    checksum = b"%06o\0 " % (_EMPTY_SUM + sum(encoded) + sum(octal))
    parts = (encoded.ljust(100, b"\0"), _EMPTY[100:124], octal, _EMPTY[136:148], checksum)
    return b"".join((*parts, _EMPTY[156:]))


class TarWriter:
    """Appends members to an open file and counts the bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = xxhash.xxh3_64()
        self.size_bytes = 0

    def add(self, name: str, pieces: Pieces) -> Placement:
        """Append one member and return the place of its data; raise PackError if it has 8 GiB."""
        views = [memoryview(piece).cast("B") for piece in pieces]  # type: ignore[arg-type]
        size = sum(view.nbytes for view in views)
        if size >= MEMBER_LIMIT_BYTES:
            raise PackError(
                f"member {name}: {size} bytes; a tar member ends below {MEMBER_LIMIT_BYTES}"
                " (8 GiB); keep fewer layers or tokens, or cut the trace"
            )
        self._write(ustar_header(name, size))
        offset = self.size_bytes
        digest = xxhash.xxh3_64()
        for view in views:
            for first in range(0, view.nbytes, _CHUNK_BYTES):
                chunk = view[first : first + _CHUNK_BYTES]
                digest.update(chunk)
                self._write(chunk)
        self._write(bytes(-size % BLOCK_BYTES))
        return Placement(offset, size, digest.intdigest())

    def finish(self) -> int:
        """Write the end of the archive and return the XXH3-64 of the whole shard."""
        self._write(bytes(END_BYTES))
        return self._hash.intdigest()

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size_bytes += len(data)
