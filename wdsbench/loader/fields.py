"""Fields of a sample that are decoded in Python: ``meta``, ``logprobs``, and each member kind that
the table marks as a loader field.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.loader.plan import DecodePlan
from wdsbench.shards.format.kinds import KINDS, loader_kinds
from wdsbench.shards.read.sample import StoredSample


def field_names() -> tuple[str, ...]:
    """Return the names that ``fields`` can have."""
    return ("hidden", "logprobs", "meta", *loader_kinds())


def read_fields(
    plan: DecodePlan, files: _core.ShardFiles, rows: NDArray[np.int64]
) -> dict[str, list[Any]]:
    """Return the values of each requested field, one per row.

    Raises:
        ShardError: A shard cannot be read. DecodeError: a member is damaged.
    """
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
