"""Dropping files from the page cache, and measuring the result. Linux only; needs no root."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from wdsbench.errors import WdsbenchError


def drop(paths: Iterable[Path]) -> None:
    """Drop the files' pages from the page cache; pages mapped by a process stay.

    Raises:
        WdsbenchError: The system does not support it.
    """
    if not hasattr(os, "posix_fadvise"):
        raise WdsbenchError("reads from a cold page cache can be measured on Linux only")
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # dirty pages cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_share(paths: Iterable[Path]) -> float:
    """Return the share of the files' pages in memory, by ``mincore(2)``, without reading them.

    Raises:
        OSError: The call failed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    resident = pages = 0
    for path in paths:
        size = path.stat().st_size
        if not size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
            count = -(-size // mmap.PAGESIZE)
            answer = np.zeros(count, np.uint8)
            view = np.frombuffer(mapped, np.uint8)
            failed = libc.mincore(
                ctypes.c_void_p(view.ctypes.data),
                ctypes.c_size_t(size),
                ctypes.c_void_p(answer.ctypes.data),
            )
            del view  # a mapping with views cannot be closed
            if failed:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(path))
        resident += int((answer & 1).sum())  # the other bits are reserved
        pages += count
    return resident / pages if pages else 0.0
