"""The ceiling of anything that hands out floats: copying as many bytes of memory once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wdsbench.bench.timing import Work

#: More than any last-level cache, so that memcpy meets memory.
MEMCPY_BYTES = 1 << 29


def memcpy(batch_bytes: int = MEMCPY_BYTES) -> Callable[[], Work]:
    """Return a case that copies batch after batch from one large buffer into another, one thread.

    Each batch has a place of its own, so that none is still in the cache when its turn comes.
    """
    batches = max(1, MEMCPY_BYTES // batch_bytes)
    source, target = (np.ones((batches, batch_bytes // 4), np.float32) for _ in range(2))

    def copy() -> Work:
        for wanted, found in zip(target, source, strict=True):
            np.copyto(wanted, found)
        return Work(0, source.nbytes, batches=batches)

    return copy
