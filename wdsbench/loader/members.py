"""Members that are decoded in Python, hashes of members, and errors that name their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.errors import DecodeError, ShardError
from wdsbench.loader.plan import DecodePlan
from wdsbench.shards.format.kinds import KINDS, loader_kinds
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.sample import StoredSample

T = TypeVar("T")


def located(index: DatasetIndex, rows: NDArray[np.int64], work: Callable[[], T]) -> T:
    """Return ``work()``, which reads the samples ``rows``; its errors name shard, member and byte:
    ShardError if a shard cannot be read, DecodeError if a member is damaged.
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
    """Raise DecodeError if the XXH3 of a member differs from the index."""
    for member in members:
        for row in rows.tolist():
            StoredSample(index, row, files, check_hash=True).read(member)


def field_names() -> tuple[str, ...]:
    """Return the names that ``fields`` can have."""
    return ("hidden", "logprobs", "meta", *loader_kinds())


def read_fields(
    plan: DecodePlan, files: _core.ShardFiles, rows: NDArray[np.int64]
) -> dict[str, list[Any]]:
    """Return the values of each requested field that is decoded in Python, one per row."""
    values: dict[str, list[Any]] = {name: [] for name in plan.fields if name != "hidden"}
    if not values:
        return values
    needs_meta = bool({"meta", "logprobs"} & values.keys())
    for row in rows.tolist():
        sample = StoredSample(plan.index, row, files)
        meta = sample.meta() if needs_meta else {}
        for name, found in values.items():
            if name == "meta":
                found.append(meta)
            elif name == "logprobs":
                found.append(sample.logprobs(meta))
            else:
                found.append(_array(sample, name, plan))
    return values


def _array(sample: StoredSample, kind: str, plan: DecodePlan) -> NDArray[Any]:
    """Return the array of a kind: requested layers only, float16 as float32."""
    array = sample.array(kind)
    if KINDS[kind].main_spec.axes[:1] == ("L",):
        array = array[plan.layers]
    return array.astype(np.float32 if array.dtype == np.float16 else array.dtype)
