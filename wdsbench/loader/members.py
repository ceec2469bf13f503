"""Members read as they are: JSON, hashes, and what an error of the C++ readers is about."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.errors import DecodeError, ShardError
from wdsbench.records import Member
from wdsbench.shards.format.kinds import META
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.sample import parse_array

T = TypeVar("T")


class _Place(TypedDict):
    shard: str
    member: str | None


class MemberBytes:
    """Reads members of samples by row and name; every error says shard, member and byte."""

    def __init__(self, index: DatasetIndex, files: _core.ShardFiles) -> None:
        self._index = index
        self._files = files

    def read(self, row: int, member: str) -> bytes:
        """Return a member's bytes.

        Raises:
            ShardError: The shard cannot be read.
        """
        shard = int(self._index.columns["shard"][row])
        offset = int(self._index.member(member, "offset")[row])
        size = int(self._index.member(member, "size")[row])
        try:
            return self._files.read(shard, offset, size)
        except _core.FormatError as error:
            place = self._place(row, member)
            raise ShardError(error.detail, **place, offset_bytes=error.offset_bytes) from error

    def read_meta(self, row: int) -> dict[str, Any]:
        """Return a sample's ``meta.json``.

        Raises:
            ShardError: It cannot be read. DecodeError: it is not JSON.
        """
        try:
            meta = json.loads(self.read(row, META))
        except ValueError as error:
            raise DecodeError(f"not JSON: {error}", **self._place(row, META)) from error
        if not isinstance(meta, dict):
            raise DecodeError("not JSON of a trace: not an object", **self._place(row, META))
        return meta

    def read_array(
        self, row: int, member: str, dtype: type[np.generic], shape: tuple[int, ...]
    ) -> NDArray[Any]:
        """Return an npy member, read-only.

        Raises:
            ShardError: It cannot be read. DecodeError: it is not an array of this dtype and shape.
        """
        data = self.read(row, member)
        place = self._place(row, member)
        offset = int(self._index.member(member, "offset")[row])
        name = self._index.member_name(row, member)
        array = parse_array(data, Member(str(place["shard"]), name, offset, len(data)))
        if array.dtype != np.dtype(dtype) or array.shape != shape:
            raise DecodeError(
                f"{array.dtype.str} of shape {array.shape}, expected {np.dtype(dtype).str} of"
                f" {shape}",
                **place,
                offset_bytes=offset,
            )
        return array

    def verify(self, rows: NDArray[np.int64], member: str) -> None:
        """Compare the XXH3 of members with the index.

        Raises:
            DecodeError: They differ.
        """
        expected = self._index.member(member, "xxh3")
        for row in rows.tolist():
            if xxhash.xxh3_64_intdigest(self.read(row, member)) != int(expected[row]):
                raise DecodeError(
                    "the bytes are not those that were packed (XXH3 differs); restore the shard or"
                    " pack again",
                    **self._place(row, member),
                    offset_bytes=int(self._index.member(member, "offset")[row]),
                )

    def located(self, rows: NDArray[np.int64], work: Callable[[], T]) -> T:
        """Run ``work`` on a batch of ``rows`` and name shard and member in what it raises."""
        try:
            return work()
        except _core.FormatError as error:
            row = int(rows[error.sample or 0])
            place = self._place(row, f"{error.member}.npy") if error.member else self._shard(row)
            kind = ShardError if error.kind in ("truncated", "io") else DecodeError
            raise kind(error.detail, **place, offset_bytes=error.offset_bytes) from error

    def _shard(self, row: int) -> _Place:
        """Return the shard of a sample, as an argument of our errors."""
        shard = int(self._index.columns["shard"][row])
        return {"shard": str(self._index.shard_path(shard)), "member": None}

    def _place(self, row: int, member: str) -> _Place:
        """Return where a member lies, as the arguments of our errors."""
        return {**self._shard(row), "member": self._index.member_name(row, member)}
