"""Ceilings: copying float32 batches, and the C++ decode from page cache to one buffer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdsbench import _core
from wdsbench.bench.data import Shape
from wdsbench.bench.part import THREADS
from wdsbench.bench.timing import Work
from wdsbench.shards.format.kinds import HIDDEN
from wdsbench.shards.read.index import DatasetIndex
from wdsbench.shards.read.open import open_shards

#: Larger than any last-level cache, so that memcpy runs at memory speed.
MEMCPY_BYTES = 1 << 29


def memcpy(batch_bytes: int = MEMCPY_BYTES) -> Callable[[], Work]:
    """Return a case that copies batches of one large buffer, out of the cache, on one thread."""
    batches = max(1, MEMCPY_BYTES // batch_bytes)
    source, target = (np.ones((batches, batch_bytes // 4), np.float32) for _ in range(2))

    def copy() -> Work:
        for wanted, found in zip(target, source, strict=True):
            np.copyto(wanted, found)
        return Work(0, source.nbytes, batches=batches)

    return copy


def kernel(shape: Shape, shards: Path, access: str) -> Callable[[], Work]:
    """Return a case that decodes all samples with prepared jobs, in shard order."""
    index = DatasetIndex.open(shards)
    files = open_shards(index, access=access)
    elements = shape.layers * shape.features
    values: dict[str, NDArray[Any] | int] = {
        "shard": index.columns["shard"],
        "tensor_offset": index.member(HIDDEN, "offset"),
        "tensor_size": index.member(HIDDEN, "size"),
        "tokens_stored": 1,
        "token_count": 1,
        "target": np.arange(len(index)) % shape.batch_size * elements,
        "layer_stride": shape.features,
    }
    jobs = np.zeros((len(index), len(_core.ROWS_COLUMNS)), np.int64)
    for column, name in enumerate(_core.ROWS_COLUMNS):
        jobs[:, column] = values.get(name, 0)
    layers = np.arange(shape.layers, dtype=np.int64)
    out = np.zeros(shape.batch_size * elements, np.float32)

    def decode() -> Work:
        for first in range(0, len(jobs), shape.batch_size):
            _core.decode_rows(
                files,
                jobs[first : first + shape.batch_size],
                layers,
                layers_stored=shape.layers,
                features=shape.features,
                token_padded=0,
                out=out,
                threads=THREADS,
            )
        return Work(len(jobs), len(jobs) * elements * 4)

    return decode
