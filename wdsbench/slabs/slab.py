"""Slabs: reused memory for the tensors of batches, leased to the holder of the batch.

The page faults of a new large block cost more than the decode. A slab is leased as a tensor and
returns to its pool when the NumPy view that owns the tensor's storage is finalised: slices,
``detach()``, ``numpy()`` and tensors saved by autograd keep the storage alive, and with it the
lease. While a consumer holds every slab, batches are in ordinary memory and are counted. With CUDA,
torch's pinned allocator is used instead, which also reuses blocks after the copies from them.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

#: Slabs of a pool: one that is decoded, one that waits to be, what the trainer holds, and its last.
SLABS = 4

#: Larger tensors are in ordinary memory; a pool holds at most SLABS times this.
SLAB_LIMIT_BYTES = 1 << 30

#: Smaller tensors are not worth a lease: the allocator reuses such blocks without new pages.
SLAB_LEAST_BYTES = 1 << 16


class SlabPool:
    """Leases tensors in reused memory; belongs to one process and one tensor of batches.

    ``ordinary`` counts the tensors in ordinary memory because every slab was held.
    """

    def __init__(self, capacity_bytes: int = 0, *, slabs: int = SLABS) -> None:
        """Make a pool of up to ``slabs`` slabs, which are allocated when they are needed.

        ``capacity_bytes`` is the size of the largest tensor; 0: unknown, slabs grow.
        """
        self.ordinary = 0
        self._capacity = min(capacity_bytes, SLAB_LIMIT_BYTES)
        self._most = slabs
        self._count = 0
        # Finalisers run at any moment and in any thread; append and pop are atomic.
        self._free: deque[NDArray[np.uint8]] = deque()

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a C-contiguous host tensor with arbitrary content."""
        size = math.prod(shape) * dtype.itemsize
        if torch.cuda.is_available():
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        if not SLAB_LEAST_BYTES <= size <= SLAB_LIMIT_BYTES:
            return torch.empty(shape, dtype=dtype)
        slab = self._free_slab(size)
        if slab is None:
            self.ordinary += 1
            return torch.empty(shape, dtype=dtype)
        # The owner of the tensor's storage: when it is finalised, the slab is free.
        view = slab[:size]
        weakref.finalize(view, self._free.append, slab).atexit = False
        return torch.from_numpy(view).view(dtype).view(shape)

    def __reduce__(self) -> tuple[type[SlabPool], tuple[int]]:
        """Pickle as an empty pool."""
        return SlabPool, (self._capacity,)

    def _free_slab(self, size: int) -> NDArray[np.uint8] | None:
        """Return a slab of at least ``size`` bytes; None if all are held."""
        try:
            slab = self._free.pop()  # the one returned last is the likeliest to be in the cache
        except IndexError:
            if self._count == self._most:
                return None
            self._count += 1
            return _new_slab(max(size, self._capacity))
        return slab if slab.nbytes >= size else _new_slab(size)


class BatchMemory(Protocol):
    """Allocates the large tensors of one batch, in the order in which they are requested."""

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype = ...) -> torch.Tensor:
        """Return a C-contiguous host tensor."""


class PoolMemory:
    """Memory of one batch: the first tensor is from the first pool, and so on; ``ordinary`` is True
    if a tensor is in ordinary memory because every slab was held.
    """

    def __init__(self, pools: Sequence[SlabPool]) -> None:
        self.ordinary = False
        self._pools = iter(pools)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the next tensor."""
        pool = next(self._pools)
        before = pool.ordinary
        tensor = pool.tensor(shape, dtype)
        self.ordinary |= pool.ordinary > before
        return tensor


class OrdinaryMemory:
    """Memory of a batch without a slab."""

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a new C-contiguous host tensor."""
        return torch.empty(shape, dtype=dtype)


def _new_slab(size: int) -> NDArray[np.uint8]:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
