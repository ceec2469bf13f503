"""The ceiling of any reader of float32 batches: copying as many bytes of memory once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wdsbench.bench.timing import Work

#: Larger than any last-level cache, so that memcpy runs at memory speed.
MEMCPY_BYTES = 1 << 29


def memcpy(batch_bytes: int = MEMCPY_BYTES) -> Callable[[], Work]:
    """Return a case that copies batches from one large buffer to another, on one thread.

    Each batch has its own place, so that none is in the cache when it is copied.
    """
    batches = max(1, MEMCPY_BYTES // batch_bytes)
    source, target = (np.ones((batches, batch_bytes // 4), np.float32) for _ in range(2))

    def copy() -> Work:
        for wanted, found in zip(target, source, strict=True):
            np.copyto(wanted, found)
        return Work(0, source.nbytes, batches=batches)

    return copy
