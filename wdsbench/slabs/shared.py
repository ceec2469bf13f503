"""Shared slabs: memory that a worker process fills and the training process yields.

A slab is an anonymous file (``memfd_create``) that both processes map. ``/dev/shm`` does not limit
its size, and it disappears with the processes. ``posix_fallocate`` reserves its pages when it is
made, so that lack of memory is an error then and not a bus error later.

The tensors of a batch are placed in a slab one after the other, each at a multiple of 64 bytes.
Both processes place the same tensors in the same order, so only the number of the slab is sent.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wdsbench.errors import WdsbenchError

#: Streaming stores fill cache lines.
ALIGN_BYTES = 64


class SharedSlab:
    """One slab; ``memory`` is all its bytes, uint8."""

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        """Reserve ``size`` bytes, or map those of a ``descriptor`` from another process.

        Raises:
            WdsbenchError: There is not enough memory, or the system has no ``memfd_create``.
        """
        if not hasattr(os, "memfd_create"):
            raise WdsbenchError("worker processes need Linux (memfd_create); use num_workers=0")
        self._descriptor = descriptor
        if self._descriptor is None:
            self._descriptor = os.memfd_create("wdsbench-slab", os.MFD_CLOEXEC)
            try:
                os.posix_fallocate(self._descriptor, 0, size)
            except OSError as error:
                self.close()
                raise WdsbenchError(
                    f"cannot reserve {size / 1e6:.0f} MB of shared memory for a batch"
                    f" ({error.strerror}); use a smaller batch_size or fewer workers"
                ) from error
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        self.memory: NDArray[np.uint8] = np.frombuffer(
            mmap.mmap(self._descriptor, size, flags=flags), np.uint8
        )

    @property
    def descriptor(self) -> int:
        """The file descriptor, by which another process maps the slab."""
        assert self._descriptor is not None, "the slab is closed"
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor; the memory lives as long as it is mapped."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            self.close()


class SlabFullError(Exception):
    """The tensors of a batch do not fit in a slab."""


class Lease:
    """Calls ``give_back()`` once, when every added view is finalised and the lease is sealed.

    Finalisers run at any moment and in any thread; drawing a number from a counter is atomic.
    """

    def __init__(self, give_back: Callable[[], object]) -> None:
        self._give_back = give_back
        self._added = 0
        self._drops = itertools.count(1)

    def add(self, view: NDArray[Any]) -> None:
        """Extend the lease to the life of ``view``, the owner of a tensor's storage."""
        self._added += 1
        weakref.finalize(view, self._drop).atexit = False

    def seal(self) -> None:
        """Declare that no more views will be added."""
        self._drop()

    def _drop(self) -> None:
        if next(self._drops) > self._added:
            self._give_back()


class SlabCursor:
    """Places the tensors of one batch in a slab."""

    def __init__(self, memory: NDArray[np.uint8], lease: Lease | None = None) -> None:
        self._memory = memory
        self._lease = lease
        self._used = 0

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the next tensor, C-contiguous; SlabFullError if it does not fit."""
        size = math.prod(shape) * dtype.itemsize
        if size > self._memory.nbytes - self._used:
            raise SlabFullError(f"{size} bytes after {self._used} of {self._memory.nbytes}")
        start = self._used
        self._used = -(-(start + size) // ALIGN_BYTES) * ALIGN_BYTES
        view = self._memory[start : start + size]
        if self._lease is not None:
            self._lease.add(view)
        return torch.from_numpy(view).view(dtype).view(shape)
