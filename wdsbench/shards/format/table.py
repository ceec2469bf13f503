"""The per-sample table: columns of fixed types in one file that is mapped, not parsed.

Each column's C-order bytes start at a multiple of 64. The file is named after the XXH3-64 of its
bytes, so an index is never read with the table of another.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeInt

from wdsbench.errors import ShardError
from wdsbench.files import atomic_file

ALIGN_BYTES = 64

_PREFIX, _SUFFIX = "samples-", ".bin"


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ColumnSpec(_Entry):
    name: str
    dtype: str
    shape: list[NonNegativeInt]
    offset_bytes: NonNegativeInt


class TableSpec(_Entry):
    """Description of the table in ``index.json``."""

    file: str
    size_bytes: NonNegativeInt
    xxh3: str
    columns: list[ColumnSpec]


def is_table_name(name: str) -> bool:
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def write_table(columns: dict[str, NDArray[Any]], new_file: Callable[[str], Path]) -> TableSpec:
    """Write the columns to ``new_file("samples-<xxh3>.bin")`` and return their description."""
    specs: list[ColumnSpec] = []
    parts: list[bytes] = []
    offset = 0
    for name, column in columns.items():
        data = np.ascontiguousarray(column)
        shape = list(data.shape)
        specs.append(ColumnSpec(name=name, dtype=data.dtype.str, shape=shape, offset_bytes=offset))
        raw = data.tobytes()
        raw += bytes(-len(raw) % ALIGN_BYTES)
        parts.append(raw)
        offset += len(raw)
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part)
    xxh3 = digest.hexdigest()
    file_name = f"{_PREFIX}{xxh3}{_SUFFIX}"
    spec = TableSpec(file=file_name, size_bytes=offset, xxh3=xxh3, columns=specs)
    with atomic_file(new_file(spec.file)) as file:
        file.writelines(parts)
    return spec


def map_table(folder: Path, spec: TableSpec) -> dict[str, NDArray[Any]]:
    """Return the columns as read-only views of the mapped file.

    Raises:
        ShardError: The file is missing or changed (size, XXH3), or a column does not fit into it.
    """
    path = folder / spec.file
    if Path(spec.file).name != spec.file:
        raise ShardError(f"table name {spec.file!r} leaves the folder", shard=str(folder))

    def wrong(detail: str) -> ShardError:
        return ShardError(detail, shard=str(path))

    try:
        size = path.stat().st_size
        if size != spec.size_bytes:
            detail = f"the table has {size} bytes, index.json says {spec.size_bytes}"
            raise wrong(f"{detail}; pack again")
        data: mmap.mmap | bytes = b""
        if size:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise wrong(f"cannot open the table: {error.strerror}; pack again") from error
    if xxhash.xxh3_64_hexdigest(data) != spec.xxh3:
        raise wrong("the table is not the one that was packed (XXH3); pack again")
    columns: dict[str, NDArray[Any]] = {}
    for column in spec.columns:
        try:
            dtype = np.dtype(column.dtype)
        except TypeError as error:
            raise wrong(f"column {column.name}: unknown dtype {column.dtype!r}") from error
        count = int(np.prod(column.shape, dtype=np.int64))
        if dtype.hasobject or column.offset_bytes + count * dtype.itemsize > size:
            raise wrong(f"column {column.name} does not fit into the table")
        view = np.empty(0, dtype)
        if count:
            view = np.frombuffer(data, dtype, count, column.offset_bytes)
        columns[column.name] = view.reshape(column.shape)
    return columns
