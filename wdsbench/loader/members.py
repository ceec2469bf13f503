"""Errors of the C++ readers with their place, and hashes of members."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.errors import DecodeError, ShardError
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.sample import StoredSample

T = TypeVar("T")


def located(index: DatasetIndex, rows: NDArray[np.int64], work: Callable[[], T]) -> T:
    """Return ``work()``, which reads the samples ``rows``.

    Raises:
        ShardError: A shard cannot be read. DecodeError: a member is damaged. Both name shard,
            member and byte.
    """
    try:
        return work()
    except _core.FormatError as error:
        row = int(rows[error.sample or 0])
        kind = ShardError if error.kind in ("truncated", "io") else DecodeError
        raise kind(
            error.detail,
            shard=str(index.shard_path(int(index.columns["shard"][row]))),
            member=index.member_name(row, f"{error.member}.npy") if error.member else None,
            offset_bytes=error.offset_bytes,
        ) from error


def verify_members(
    index: DatasetIndex,
    files: _core.ShardFiles,
    rows: NDArray[np.int64],
    members: tuple[str, ...],
) -> None:
    """Compare the XXH3 of members with the index.

    Raises:
        DecodeError: They differ.
    """
    for member in members:
        for row in rows.tolist():
            StoredSample(index, row, files, check_hash=True).read(member)
