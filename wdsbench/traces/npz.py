"""``.npz`` files of traces, with one trace in memory at a time and without ``pickle``.

The files are those of ``numpy.savez`` and ``savez_compressed``: zip archives of ``NAME.npy``
members. Texts are unicode arrays, or in a member ``meta.json``. isal verifies checksums and
inflates members several times faster than zlib.
"""

from __future__ import annotations

import math
import struct
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, cast

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from wdsbench.files import atomic_file
from wdsbench.traces.arrays import damaged_file
from wdsbench.traces.named import (
    META,
    Reader,
    as_value,
    meta_bytes,
    named_values,
    parse_json,
    read_named,
)

_META_MEMBER: Final = f"{META}.json"
_SUFFIX: Final = ".npy"
#: PKZIP APPNOTE 4.3.7, local header: 26 bytes, then the lengths of the name and the extra field.
_LOCAL_HEADER: Final = struct.Struct("<26xHH")
_ENCRYPTED: Final = 0x1
#: The earliest date of a zip archive; makes the written bytes independent of the time.
_NO_TIME: Final = (1980, 1, 1, 0, 0, 0)
_CHUNK_BYTES: Final = 1 << 20
# The library's stub calls the class an instance.
_INFLATE_ERROR: Final = cast(type[Exception], isal_zlib.error)
_META_LIMIT_BYTES: Final = 1 << 30
_HEADER_READERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the raw dict of each trace (module ``named``), one in memory at a time.

    Raises:
        TraceError: The file is cut short or damaged, or holds no trace, or an array of objects.
    """
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = {info.filename: info for info in archive.infolist()}
            meta = _read_meta(file, members[_META_MEMBER]) if _META_MEMBER in members else None
        except (zipfile.BadZipFile, ValueError, EOFError) as error:
            raise damaged_file(".npz file", error, str(path)) from error
        readers = {
            name.removesuffix(_SUFFIX): _array_reader(file, info)
            for name, info in members.items()
            if name.endswith(_SUFFIX)
        }
        yield from read_named(readers, meta, str(path))


def write_npz(
    path: Path, traces: Sequence[Mapping[str, Any]] | Iterable[Mapping[str, Any]]
) -> None:
    """Write raw traces, uncompressed; the same values give the same bytes.

    An iterable other than a sequence is read one trace at a time and written as a file of several.
    """
    single = isinstance(traces, Sequence) and len(traces) == 1
    metas = []
    with atomic_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for number, raw in enumerate(traces):
            arrays, meta = named_values(raw, None if single else number)
            metas.append(meta)
            for name, array in arrays.items():
                info = zipfile.ZipInfo(name + _SUFFIX, _NO_TIME)
                info.file_size = array.nbytes  # beyond 2 GiB the header is longer
                with archive.open(info, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        member_info = zipfile.ZipInfo(_META_MEMBER, _NO_TIME)
        archive.writestr(member_info, meta_bytes(metas, single=single))


class _Member:
    """The content of one member, read sequentially; ``close`` verifies its checksum."""

    def __init__(self, file: IO[bytes], info: zipfile.ZipInfo) -> None:
        if info.flag_bits & _ENCRYPTED:
            raise ValueError(f"member {info.filename} is encrypted; save it without a password")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(
                f"member {info.filename} is compressed by method {info.compress_type}; expected"
                " none and deflate, as numpy.savez and savez_compressed write"
            )
        file.seek(info.header_offset)
        header = file.read(_LOCAL_HEADER.size)
        if len(header) < _LOCAL_HEADER.size:
            raise EOFError(f"member {info.filename}: the file is cut short")
        name, extra = _LOCAL_HEADER.unpack(header)
        self._name = info.filename
        self._file = file
        self._place = info.header_offset + _LOCAL_HEADER.size + name + extra
        self._packed = info.compress_size
        self.left = info.file_size  # bytes not read yet
        self._crc, self._wanted_crc = 0, info.CRC
        deflated = info.compress_type == zipfile.ZIP_DEFLATED
        self._inflate = isal_zlib.decompressobj(wbits=-15) if deflated else None

    def read(self, size: int = -1) -> bytes:
        """Return the next ``size`` bytes, or all that are left if they are fewer."""
        if size < 0 or size > self.left:
            size = self.left
        data = bytearray(size)
        self.readinto(memoryview(data))
        return bytes(data)

    def readinto(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            if self._inflate is None:
                self._file.seek(self._place)
                count = self._file.readinto(view[done:])  # type: ignore[attr-defined]
                self._place += count
            else:
                chunk = self._inflated(len(view) - done)
                count = len(chunk)
                view[done : done + count] = chunk
            if not count:
                raise EOFError(f"member {self._name}: the file is cut short or damaged")
            self._crc = isal_zlib.crc32(view[done : done + count], self._crc)
            done += count
        self.left -= done

    def close(self) -> None:
        """Raise ValueError if bytes are left or the checksum is wrong."""
        if self.left or self._crc != self._wanted_crc:
            raise ValueError(f"member {self._name}: its checksum is wrong; the file is damaged")

    def _inflated(self, limit: int) -> bytes:
        """Return the next inflated bytes, at most ``limit``; empty at the end."""
        assert self._inflate is not None
        while True:
            data = self._inflate.unconsumed_tail
            if not data and self._packed:
                self._file.seek(self._place)
                data = self._file.read(min(_CHUNK_BYTES, self._packed))
                self._place += len(data)
                self._packed -= len(data)
            try:
                found: bytes = self._inflate.decompress(data, min(limit, _CHUNK_BYTES))
            except _INFLATE_ERROR as error:
                raise ValueError(f"member {self._name}: cannot be inflated ({error})") from error
            if found or not data:
                return found


def _read_meta(file: IO[bytes], info: zipfile.ZipInfo) -> Any:
    if info.file_size > _META_LIMIT_BYTES:
        raise ValueError(
            f"member {info.filename} has {info.file_size} bytes; expected at most"
            f" {_META_LIMIT_BYTES}"
        )
    member = _Member(file, info)
    data = member.read()
    member.close()
    return parse_json(data, _META_MEMBER)


def _array_reader(file: IO[bytes], info: zipfile.ZipInfo) -> Reader:
    def read() -> Any:
        member = _Member(file, info)
        array = _read_array(member, info.filename)
        member.close()
        return as_value(array)

    return read


def _read_array(member: _Member, name: str) -> NDArray[Any]:
    try:
        version = np.lib.format.read_magic(member)
        if version not in _HEADER_READERS:
            raise ValueError(f"npy version {version}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers written by Python 2
            shape, fortran, dtype = _HEADER_READERS[version](member)
    except (ValueError, TypeError, SyntaxError) as error:
        raise ValueError(f"member {name} is not an npy file ({error})") from error
    if dtype.kind not in "biufUS":
        raise ValueError(
            f"member {name} has dtype {dtype}; expected numbers or texts: save lists of arrays of"
            " one shape as one array"
        )
    size = math.prod(shape) * dtype.itemsize
    if size != member.left:
        raise ValueError(
            f"member {name} has {member.left} bytes of data; {dtype} of shape {shape} needs {size}"
        )
    flat = np.empty(math.prod(shape), dtype)
    member.readinto(flat.view(np.uint8).data)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
