"""Reused host memory for batches.

A *slab* is one block of memory that has been written before, so that its pages exist: a fresh block
of some megabytes is mapped anew and faults page by page, which costs more than the decode itself. A
slab is leased as a tensor and comes back when the owner object of the tensor's storage is
finalised. That is the NumPy view the storage was made from, and not the tensor: slices,
``detach()``, ``numpy()`` and what autograd saved keep the storage, and so the lease, alive.

While a consumer holds every slab, batches come in ordinary memory and are counted; holding on to
any number of them gives right data and never waits. With CUDA, memory is torch's own pinned
allocator instead: it reuses blocks too, and waits for the copies made from them.
"""

from __future__ import annotations

import math
import weakref
from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray

#: Slabs of a pool: what the decoder fills, what the trainer holds, and as much again.
SLABS = 4

#: Larger tensors come in ordinary memory; a pool holds at most SLABS times this.
SLAB_LIMIT_BYTES = 1 << 30

#: Smaller tensors are not worth a lease: the allocator reuses such blocks without new pages.
SLAB_LEAST_BYTES = 1 << 16


class SlabPool:
    """Leases tensors in reused memory; belongs to one process and one field of a loader.

    Attributes:
        ordinary: Tensors given in ordinary memory because every slab was held.
    """

    def __init__(self, slabs: int = SLABS) -> None:
        self.ordinary = 0
        self._most = slabs
        self._count = 0
        # Finalisers run at any moment and in any thread; append and pop are atomic.
        self._free: deque[NDArray[np.uint8]] = deque()

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a C-contiguous host tensor whose content is left over from somebody else."""
        size = math.prod(shape) * dtype.itemsize
        in_worker = torch.utils.data.get_worker_info() is not None
        if torch.cuda.is_available() and not in_worker:
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        if in_worker or not SLAB_LEAST_BYTES <= size <= SLAB_LIMIT_BYTES:
            return torch.empty(shape, dtype=dtype)
        slab = self._take(size)
        if slab is None:
            self.ordinary += 1
            return torch.empty(shape, dtype=dtype)
        view = slab[:size]
        weakref.finalize(view, self._free.append, slab).atexit = False
        return torch.from_numpy(view).view(dtype).view(shape)

    def __reduce__(self) -> tuple[type[SlabPool], tuple[int]]:
        """Travel to another process as an empty pool."""
        return SlabPool, (self._most,)

    def _take(self, size: int) -> NDArray[np.uint8] | None:
        """Return a slab of at least ``size`` bytes; None where all are held."""
        try:
            slab = self._free.pop()  # the last one back is the likeliest to be in the cache
        except IndexError:
            if self._count == self._most:
                return None
            self._count += 1
            return np.empty(size, np.uint8)
        return slab if slab.nbytes >= size else np.empty(size, np.uint8)
