"""Slabs: reused memory for the tensors of batches, leased to whoever holds the batch.

A fresh block of more than a few MB is mapped anew and faults page by page, which costs more than
the decode itself. A slab is leased as a tensor and comes back when the owner object of the tensor's
storage is finalised. That is the NumPy view the storage was made from, and not the tensor: slices,
``detach()``, ``numpy()`` and what autograd saved keep the storage, and so the lease, alive.

While a consumer holds every slab, batches come in ordinary memory and are counted; holding on to
any number of them gives right data and never waits. With CUDA, memory is torch's own pinned
allocator instead: it reuses blocks too, and waits for the copies made from them.

Slabs start at a cache line, so that streaming stores fill whole lines, and ask for huge pages. Each
is as large as the largest batch may be, or SLAB_LIMIT_BYTES; pages are touched when first used.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

T = TypeVar("T")

#: Slabs of a pool: one that is decoded, one that waits to be, what the trainer holds, and its last.
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

    def __init__(self, capacity_bytes: int = 0, *, slabs: int = SLABS) -> None:
        """Prepare a pool; memory is taken when it is needed.

        Args:
            capacity_bytes: Of the largest tensor; 0: unknown, slabs grow with their tensors.
            slabs: How many there may be.
        """
        self.ordinary = 0
        self._capacity = min(capacity_bytes, SLAB_LIMIT_BYTES)
        self._most = slabs
        self._count = 0
        # Finalisers run at any moment and in any thread; append and pop are atomic.
        self._free: deque[NDArray[np.uint8]] = deque()

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a C-contiguous host tensor whose content is left over from somebody else."""
        size = math.prod(shape) * dtype.itemsize
        if torch.cuda.is_available():
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        if not SLAB_LEAST_BYTES <= size <= SLAB_LIMIT_BYTES:
            return torch.empty(shape, dtype=dtype)
        slab = self._take(size)
        if slab is None:
            self.ordinary += 1
            return torch.empty(shape, dtype=dtype)
        return leased(slab, size, shape, dtype, self._free.append, slab)

    def __reduce__(self) -> tuple[type[SlabPool], tuple[int]]:
        """Travel to another process as an empty pool."""
        return SlabPool, (self._capacity,)

    def _take(self, size: int) -> NDArray[np.uint8] | None:
        """Return a slab of at least ``size`` bytes; None where all are held."""
        try:
            slab = self._free.pop()  # the last one back is the likeliest to be in the cache
        except IndexError:
            if self._count == self._most:
                return None
            self._count += 1
            return _new_slab(max(size, self._capacity))
        return slab if slab.nbytes >= size else _new_slab(size)


class OrdinaryMemory:
    """Memory of a batch that takes no slab."""

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a new C-contiguous host tensor."""
        return torch.empty(shape, dtype=dtype)


def leased(
    slab: NDArray[np.uint8],
    size: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    give_back: Callable[[T], object],
    what: T,
) -> torch.Tensor:
    """Return the first ``size`` bytes of a slab as a tensor; calls ``give_back(what)`` when nobody
    can see them any more.
    """
    view = slab[:size]
    weakref.finalize(view, give_back, what).atexit = False
    return torch.from_numpy(view).view(dtype).view(shape)


def _new_slab(size: int) -> NDArray[np.uint8]:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
