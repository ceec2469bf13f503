"""``.safetensors`` files of traces, read one trace at a time, without torch or the library.

Source: https://github.com/huggingface/safetensors, section "Format": u64 little endian N; N bytes
JSON, ``{name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {text: text}}``;
the data, to whose start offsets are relative. bfloat16 is read as float32.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from wdsbench.files import atomic_file
from wdsbench.traces.arrays import damaged_file
from wdsbench.traces.named import (
    META,
    TEXTS,
    Reader,
    meta_bytes,
    named_values,
    parse_json,
    read_named,
)

#: The library's own limit.
_HEADER_LIMIT_BYTES: Final = 100_000_000
_LENGTH: Final = struct.Struct("<Q")
_METADATA: Final = "__metadata__"
_DTYPES: Final = {
    "BOOL": "|b1",
    "U8": "|u1",
    "I8": "|i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "BF16": "<u2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}
_NAMES: Final = {np.dtype(code): name for name, code in _DTYPES.items() if name != "BF16"}
#: Alignment of the data in the file, for arrays that are memory-mapped.
_ALIGN_BYTES: Final = 64


def read_safetensors(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the raw dict of each trace (module ``named``), one in memory at a time.

    ``__metadata__`` may hold ``meta``, a JSON object, and single values under their names: texts as
    they are, other values as JSON. Raises TraceError if the file is damaged, or holds no trace.
    """
    with path.open("rb") as file:
        try:
            readers, meta = _open(file)
        except ValueError as error:
            raise damaged_file(".safetensors file", error, str(path)) from error
        yield from read_named(readers, meta, str(path))


def write_safetensors(path: Path, traces: Sequence[Mapping[str, Any]]) -> None:
    """Write raw traces; the same values give the same bytes."""
    arrays: dict[str, NDArray[Any]] = {}
    metas = []
    single = len(traces) == 1
    for number, raw in enumerate(traces):
        more, meta = named_values(raw, None if single else number)
        arrays.update(more)
        metas.append(meta)
    # Widest first, so that every array is aligned to its own width.
    names = sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)
    meta_text = meta_bytes(metas, single=single).decode("ascii")
    header: dict[str, Any] = {_METADATA: {META: meta_text}}
    offset = 0
    for name in names:
        array = arrays[name]
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-(_LENGTH.size + len(text)) % _ALIGN_BYTES)
    with atomic_file(path) as file:
        file.write(_LENGTH.pack(len(text)))
        file.write(text)
        for name in names:
            file.write(arrays[name].reshape(-1).view(np.uint8).data)


def _open(file: BinaryIO) -> tuple[dict[str, Reader], object]:
    """Return readers of all tensors, and ``meta``; raise ValueError if the header is invalid."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(_LENGTH.size)
    if len(start) < _LENGTH.size:
        raise ValueError(f"the file has {size} bytes; expected at least {_LENGTH.size}")
    (length,) = _LENGTH.unpack(start)
    if length > min(_HEADER_LIMIT_BYTES, size - _LENGTH.size):
        raise ValueError(f"the header has {length} bytes, the file {size}")
    header = parse_json(file.read(length), "the header")
    if not isinstance(header, dict):
        raise ValueError("the header is not a JSON object")
    metadata = header.pop(_METADATA, None) or {}
    if not isinstance(metadata, dict):
        raise ValueError(f"{_METADATA} is not a JSON object")
    first = _LENGTH.size + length
    readers: dict[str, Reader] = {}
    meta: object = None
    for name, text in metadata.items():
        if not isinstance(text, str):
            raise ValueError(f"{_METADATA}, {name}, is not text")
        if name == META:
            meta = parse_json(text, f"{_METADATA}, {META},")
        else:
            readers[name] = _metadata_reader(name, text)
    for name, entry in header.items():
        readers[name] = _tensor_reader(file, name, entry, first, size)
    return readers, meta


def _metadata_reader(name: str, text: str) -> Reader:
    plain = name.partition(".")[2] if name.partition(".")[0].isdecimal() else name
    return lambda: text if plain in TEXTS else parse_json(text, f"{_METADATA}, {name},")


def _tensor_reader(file: BinaryIO, name: str, entry: Any, first: int, size: int) -> Reader:
    try:
        code, shape = entry["dtype"], [int(axis) for axis in entry["shape"]]
        begin, end = (int(place) for place in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"tensor {name}: needs dtype, shape and data_offsets") from error
    if min(shape, default=0) < 0 or not 0 <= begin <= end <= size - first:
        raise ValueError(
            f"tensor {name}: shape {shape}, bytes {begin} to {end}; the data has {size - first}"
        )

    def read() -> NDArray[Any]:
        if code not in _DTYPES:
            raise ValueError(f"tensor {name} has dtype {code}; expected {', '.join(_DTYPES)}")
        dtype = np.dtype(_DTYPES[code])
        if math.prod(shape) * dtype.itemsize != end - begin:
            raise ValueError(
                f"tensor {name}: {end - begin} bytes for {code} of shape {shape}; the file is"
                " damaged"
            )
        array = np.empty(shape, dtype)
        file.seek(first + begin)
        if file.readinto(array.reshape(-1).view(np.uint8)) != array.nbytes:  # type: ignore[attr-defined]
            raise ValueError(f"tensor {name}: the file is cut short")
        if code == "BF16":  # the upper half of a float32
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array

    return read
